#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ckpt push, pull and what reads in place against moto (https://github.com/getmoto/moto), an independent S3 server: a
# checkpoint of about 256 MB in parts, there and back; a push that is killed after each of many delays, after which a
# reader has the old step or the new one, whole; the static program; https. Prints bytes per second. moto checks no
# signatures; checkpoint/object/s3_store_test.cc does.
#
#   ./bazelw build //tools:ckpt //tools:ckpt_static && tests/object_store/run.sh
#
# Wants python3 with venv, and PyPI for moto (MOTO=DIR: a virtual environment that has it). Exit status 77 after a line
# "SKIPPED: ..." if either is missing. Everything is in a temporary directory, which is removed.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

ckpt=${CKPT:-$PWD/bazel-bin/tools/ckpt}
static=${CKPT_STATIC:-$PWD/bazel-bin/tools/ckpt_static}
for program in "$ckpt" "$static"; do
  [ -x "$program" ] || { echo "object_store: $program is missing: ./bazelw build //tools:ckpt //tools:ckpt_static" >&2; exit 1; }
done
work=$(mktemp -d)
server=
# Also if a check fails: the server must not stay.
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT

moto=${MOTO:-$work/moto}
if [ -z "${MOTO:-}" ]; then
  python3 -m venv "$moto" >"$work/venv.log" 2>&1 && "$moto/bin/pip" install --quiet 'moto[server]' >>"$work/venv.log" 2>&1 || {
    echo "object_store: SKIPPED: moto[server] cannot be installed here: $(tail -1 "$work/venv.log")"
    exit 77
  }
fi

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
"$moto/bin/moto_server" -H 127.0.0.1 -p "$port" >"$work/moto.log" 2>&1 &
server=$!
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1
export AWS_ENDPOINT_URL=http://127.0.0.1:$port no_proxy=127.0.0.1 HOME=$work
unset AWS_ENDPOINT_URL_S3 AWS_PROFILE AWS_SESSION_TOKEN
for _ in $(seq 150); do
  curl -s -o /dev/null "$AWS_ENDPOINT_URL/moto-api/" && break
  sleep 0.2
done
curl -s -f -o /dev/null -X PUT "$AWS_ENDPOINT_URL/models" || { tail "$work/moto.log"; exit 1; }

# model NAME MIB: a safetensors file of random numbers.
model() {
  python3 - "$work/$1.safetensors" "$2" <<'PYTHON'
import json, os, sys
rows = int(sys.argv[2]) * 64
header = json.dumps({"w": {"dtype": "F32", "shape": [rows, 4096], "data_offsets": [0, rows * 16384]}}).encode()
header += b" " * (-len(header) % 8)
with open(sys.argv[1], "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header)
    for _ in range(rows // 64):
        # Finite numbers: the sign and exponent bytes are fixed.
        block = bytearray(os.urandom(64 * 16384))
        block[3::4] = b"\x3f" * (len(block) // 4)
        file.write(block)
PYTHON
}
model large 256
model first 24
model second 24
"$ckpt" convert "$work/large.safetensors" "$work/large" --state_dict_type=sharded --world_size=4 --step=0 >/dev/null
# Two saves of the same step: a foreign format does not record one.
"$ckpt" convert "$work/first.safetensors" "$work/first" --state_dict_type=sharded --world_size=2 --step=0 >/dev/null
"$ckpt" convert "$work/second.safetensors" "$work/second" --state_dict_type=sharded --world_size=2 --step=0 >/dev/null

rate() {
  python3 -c 'import json, sys; r = json.load(sys.stdin); print(sys.argv[1], r["files"], "files,", r["bytes"],
"bytes,", round(r["seconds"], 2), "s,", round(r["bytes"] / r["seconds"] / 1e6), "MB/s")' "$1"
}
"$ckpt" push "$work/large" s3://models/large --json | rate push:
"$ckpt" pull s3://models/large "$work/copy" --json | rate pull:
diff -r "$work/large" "$work/copy"
"$ckpt" inspect s3://models/large | head -1
"$ckpt" verify s3://models/large
"$ckpt" diff s3://models/large "$work/large" | tail -1
"$ckpt" convert s3://models/large "$work/in_place.safetensors" --json | python3 -c 'import json, sys; r = json.load(sys.stdin)
print("convert:", r["bytes"], "bytes in place,", round(r["seconds"], 2), "s")'
"$ckpt" diff "$work/in_place.safetensors" "$work/large" --model_only >/dev/null
if "$ckpt" push "$work/first" s3://models/large 2>"$work/refused"; then
  echo "object_store: a second save of a step was not refused"; exit 1
fi
grep -q "is of save" "$work/refused"

# Kills: a reader has either the old save or the new one.
"$ckpt" push "$work/first" s3://models/run >/dev/null
kills=0
old=0
for delay in $(seq 0.005 0.015 0.9); do
  # The braces discard the shell's own line about the kill.
  { timeout --signal=KILL "$delay" "$ckpt" push "$work/second" s3://models/run --force; } >/dev/null 2>&1 && break
  kills=$((kills + 1))
  rm -rf "$work/seen"
  "$ckpt" pull s3://models/run "$work/seen" >/dev/null
  if cmp -s "$work/seen/manifest.json" "$work/first/manifest.json"; then
    old=$((old + 1))
  else
    cmp "$work/seen/manifest.json" "$work/second/manifest.json"
  fi
  # Back to the old one.
  "$ckpt" push "$work/first" s3://models/run --force >/dev/null
done
echo "kills: $kills pushes killed, after which $old readers had the old save and $((kills - old)) the new one"
"$ckpt" push "$work/second" s3://models/run --force >/dev/null
rm -rf "$work/seen"
"$ckpt" pull s3://models/run "$work/seen" >/dev/null
diff -r "$work/second" "$work/seen"
left=$(curl -s "$AWS_ENDPOINT_URL/models?list-type=2&prefix=run/" | grep -o "<Key>" | wc -l)
files=$(find "$work/second" -type f | wc -l)
[ "$left" = "$files" ] || { echo "object_store: $left objects are left, expected $files"; exit 1; }

# https: a certificate that nobody has signed is refused, and accepted where it is named. By both programs.
if command -v openssl >/dev/null; then
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$work/key.pem" -out "$work/certificate.pem" 2>/dev/null
  kill "$server" && wait "$server" 2>/dev/null || true
  port=$(free_port)
  "$moto/bin/moto_server" -H 127.0.0.1 -p "$port" --ssl -c "$work/certificate.pem" -k "$work/key.pem" >"$work/moto.log" 2>&1 &
  server=$!
  export AWS_ENDPOINT_URL=https://localhost:$port no_proxy=localhost
  for _ in $(seq 150); do
    curl -s -o /dev/null --cacert "$work/certificate.pem" "$AWS_ENDPOINT_URL/moto-api/" && break
    sleep 0.2
  done
  curl -s -f -o /dev/null --cacert "$work/certificate.pem" -X PUT "$AWS_ENDPOINT_URL/models"
  for program in "$ckpt" "$static"; do
    name=$(basename "$program")
    if "$program" push "$work/first" "s3://models/$name" 2>"$work/refused"; then
      echo "object_store: $name trusts any server"; exit 1
    fi
    grep -qi "certificate" "$work/refused" || { cat "$work/refused"; exit 1; }
    export AWS_CA_BUNDLE=$work/certificate.pem
    "$program" push "$work/first" "s3://models/$name" >/dev/null
    "$program" verify "s3://models/$name"
    "$program" pull "s3://models/$name" "$work/by_$name" >/dev/null
    diff -r "$work/first" "$work/by_$name"
    unset AWS_CA_BUNDLE
  done
  echo "https: pushed, verified in place and pulled by both programs"
else
  echo "object_store: SKIPPED: https: there is no openssl"
fi
echo "object_store: PASSED"
