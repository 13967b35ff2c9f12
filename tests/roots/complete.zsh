#!/usr/bin/zsh -f
# SPDX-License-Identifier: Apache-2.0
#
# Types at the prompt of a shell, as a user does, and checks the installed completion:
#
#   complete.zsh bash|zsh
zmodload zsh/zpty || exit 1

# Waits until a shell shows $1, ignoring sequences that move a cursor; fails after 10 seconds. (readline shows typed
# text only if the terminal would, hence -e.)
shows() {
  local piece shown=
  integer tries=0
  while (( tries++ < 200 )); do
    while zpty -r -t shell piece; do shown+=$piece; done
    shown=${shown//$'\e'\[[0-9;?]#[a-zA-Z]/}
    [[ $shown == *$1* ]] && return 0
    sleep 0.05
  done
  print -r -- "expected $1, and it shows ${(qqqq)shown}"
  return 1
}

# completes TYPED WANTED
completes() {
  zpty -w -n shell $'\C-u'$1$'\t'
  shows $2 || { print "FAILED: $1 is not completed to $2"; exit 1 }
}

setopt extended_glob
export TERM=dumb
case $1 in
  bash)
    zpty -e shell bash --norc -i
    zpty -w shell 'PS1=">"; source /usr/share/bash-completion/bash_completion; bind "set enable-bracketed-paste off"; echo rea""dy'
    ;;
  zsh)
    zpty shell zsh -f -i
    zpty -w shell 'PS1=">"; autoload -Uz compinit; compinit -u -D; echo rea""dy'
    ;;
  *) print "complete.zsh: $1: expected bash or zsh" && exit 2 ;;
esac
shows ready || exit 1
completes 'ckpt conv' 'ckpt convert '
completes 'ckpt verify --flat' 'ckpt verify --flat_layout='
completes 'ckpt convert --to=saf' 'ckpt convert --to=safetensors'
completes 'ckpt convert --dtype=bf' 'ckpt convert --dtype=bfloat16'
completes 'fsdp-launch --nno' 'fsdp-launch --nnodes='
completes 'ckpt verify mod' 'ckpt verify model.safetensors'
zpty -d shell
print "completion in $1 works"
