#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the image of tools/package/Containerfile and runs its program on a checkpoint:
#
#   tests/image/run.sh CKPT      the static program: bazel-bin/tools/ckpt_static, or ckpt of a release
#
# With buildah, as root. It needs no network, since the image is built from nothing, and keeps its files in a directory
# of its own. The image is checked as the archive that other machines load, and its program runs in its file system,
# without a container. Exit status 77 after a line "SKIPPED: ..." if there is no buildah.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2

fail() {
  echo "FAILED: $*"
  exit 1
}

[ $# = 1 ] && [ -x "$1" ] || { echo "usage: tests/image/run.sh CKPT" >&2 && exit 2; }
[ "$(id -u)" = 0 ] || { echo "SKIPPED: the image: must be root" && exit 77; }
command -v buildah >/dev/null || { echo "SKIPPED: the image: there is no buildah" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/release"
install -m 755 "$1" "$work/release/ckpt"
cp tools/package/Containerfile "$work/release"

# Without an overlay, and without this machine's registries, policy and storage.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$work/policy.json"
: >"$work/registries.conf"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/root"\nrunroot = "%s/run"\n' "$work" "$work" >"$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf CONTAINERS_REGISTRIES_CONF=$work/registries.conf
export BUILDAH_ISOLATION=chroot TMPDIR=$work
buildah build --signature-policy "$work/policy.json" --quiet -t ckpt -f "$work/release/Containerfile" \
  "$work/release" >"$work/log" 2>&1 || fail "it does not build: $(tail -n 3 "$work/log")"
buildah push --signature-policy "$work/policy.json" --quiet ckpt "oci:$work/image" >"$work/log" 2>&1 ||
  fail "it is not written: $(tail -n 3 "$work/log")"

# The layout of OCI, read as a puller of the image reads it.
python3 - "$work/image" "$work/rootfs" <<'END' || fail "the image is not the recipe's"
import json, os, sys, tarfile

image, rootfs = sys.argv[1:]


def blob(descriptor):
    return os.path.join(image, "blobs", *descriptor["digest"].split(":"))


with open(os.path.join(image, "index.json")) as file:
    manifests = json.load(file)["manifests"]
assert len(manifests) == 1, manifests
with open(blob(manifests[0])) as file:
    manifest = json.load(file)
with open(blob(manifest["config"])) as file:
    config = json.load(file)
assert config["config"]["Entrypoint"] == ["/ckpt"], config
for layer in manifest["layers"]:
    with tarfile.open(blob(layer)) as archive:
        archive.extractall(rootfs)
assert os.listdir(rootfs) == ["ckpt"], os.listdir(rootfs)
size = sum(layer["size"] for layer in manifest["layers"])
print(f"image: {len(manifest['layers'])} layer, {size} bytes compressed, {os.path.getsize(rootfs + '/ckpt')} in all")
END

mkdir "$work/rootfs/data"
cp checkpoint/testdata/all_dtypes.safetensors "$work/rootfs/data/model.safetensors"
for line in "convert /data/model.safetensors /data/full" "verify /data/full" "diff /data/model.safetensors /data/full"; do
  # shellcheck disable=SC2086
  chroot "$work/rootfs" /ckpt $line >"$work/log" 2>&1 || fail "ckpt $line: $(tail -n 1 "$work/log")"
done
cmp "$1" "$work/rootfs/ckpt" || fail "the program of the image is another"
echo "PASSED"
