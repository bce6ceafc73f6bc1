#!/bin/bash
# Packs the programs of a build folder, the demo's tokens, files of tests, headers and scripts into an archive, whose
# first.sh tests and measures another machine's GPU:
#
#   dev/gpu_bundle.sh build/cuda-bundle build/gpu-first.tar.xz      (make gpu-bundle)
#   tar xf gpu-first.tar.xz && gpu-first/first.sh a b                   (there; dev/gpu_first.py --help)
#
# There it needs the driver, CUDA's libraries of the same major version and Python 3; PyTorch for comparisons.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1 archive=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$work/gpu-first
mkdir -p "$here/build/cuda/bench" "$here/build/corpus" "$here/test/golden"
for name in tests train_gpt2 train_llama bench/bench_gpu; do
    [ -e "$programs/$name" ] || { echo "gpu_bundle: $programs/$name is missing; run make gpu-bundle" >&2; exit 1; }
    strip -s -o "$here/build/cuda/$name" "$programs/$name"
done
cp -r scripts dev "$here"
find "$here/scripts" "$here/dev" -name __pycache__ -prune -exec rm -r {} +
cp test/golden/*.safetensors "$here/test/golden"
[ ! -e build/corpus/manifest.json ] || cp -r build/corpus "$here/build"
# Headers for builds there without a package registry: `make` finds them in build/deps/include of its folder.
mkdir -p "$here/build/deps/include"
for header in fmt nlohmann catch2 xxhash.h; do
    for folder in build/deps/include /usr/include; do
        [ ! -e "$folder/$header" ] || { cp -rL "$folder/$header" "$here/build/deps/include"; break; }
    done
done
cat >"$here/first.sh" <<'FIRST'
#!/bin/bash
# The first hour on this machine's GPU: ./first.sh [STAGE...]; dev/gpu_first.py --help says what the stages are.
set -euo pipefail
cd "$(dirname "$0")"
missing() { ldd build/cuda/train_gpt2 | sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p' | paste -sd' '; }
if [ -n "$(missing)" ]; then
    folders=$({ dev/find_cuda.sh libs 2>/dev/null || true; } | sed 's/^-L\([^ ]*\) .*/\1/' | sort -u | paste -sd:)
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders
fi
if [ -n "$(missing)" ]; then
    echo "first: $(missing) not found: install CUDA's libraries, or name their folder in LD_LIBRARY_PATH" >&2
    exit 2
fi
exec python3 dev/gpu_first.py "$@"
FIRST
chmod +x "$here/first.sh"
# The programs have most of their code in common, which a window of their size finds. PRESET: of xz, for tests.
tar -C "$work" -c gpu-first | xz -T1 --lzma2=preset="${PRESET:-6}",dict=192MiB >"$archive.new"
mv "$archive.new" "$archive"
echo "$archive: $(($(stat -c %s "$archive") / 1000000)) MB"
