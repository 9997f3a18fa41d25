#!/bin/sh
# Makes a relocatable tarball for machines without a compiler: programs, engines, plot scripts, the files that
# README.md links to, and the required shared libraries except the C library and NVIDIA's, which programs and
# engines find by themselves: LD_LIBRARY_PATH stays as it is, also for jobs that lockstep starts or observes. CUDA,
# cuDNN, cuBLASLt and NCCL must match the driver and come from the target machine (set LD_LIBRARY_PATH if the
# loader does not find them).
#
#   harness/dist.sh BUILD
set -eu
build=$1
version=$(git describe --always --dirty 2>/dev/null) || version=$("$build/lockstep" --version | cut -d " " -f 2)
name=lockstep-$version-$(uname -m)
stage=$build/dist/$name
rm -rf "$stage"
mkdir -p "$stage/libexec/bundled"
cp "$build"/lockstep "$build"/lockstep-train "$build"/lockstep-launch \
    "$build"/lockstep-collectives "$stage/libexec/"
mkdir -p "$stage/libexec/lib"
cp "$build"/lib/ls_*.so "$stage/libexec/lib/"
mkdir -p "$stage/libexec/plots" "$stage/libexec/suite"
cp plots/*.gp "$stage/libexec/plots/"
cp -r suite/claims suite/lists suite/peers suite/requirements.txt "$stage/libexec/suite/"
find suite/observe/attach -name '*.py' ! -name 'test_*' | while read -r file; do
    install -D -m 644 "$file" "$stage/libexec/$file"
done
sh harness/commit.sh "$stage/libexec/suite/commit.txt"
cp README.md LICENSE "$stage/"
grep -o ']([^)#]*)' README.md | tr -d '()]' | sort -u | while read -r linked; do
    mkdir -p "$stage/$(dirname "$linked")"
    cp "$linked" "$stage/$linked"
done
libraries() { # FILE...: what they load, but for the C library and NVIDIA's
    ldd "$@" | awk '/=> \// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so' |
        grep -vE '/lib(cuda|cudart|cudnn.*|cublas|cublasLt|nccl|nvrtc.*|nvidia.*)\.so'
}
libraries "$stage"/libexec/lockstep* "$stage"/libexec/lib/*.so |
    while read -r library; do cp -L "$library" "$stage/libexec/bundled/"; done
if libraries "$stage"/libexec/lockstep* "$stage"/libexec/lib/ls_*cpu.so "$stage"/libexec/lib/ls_gloo.so |
    grep -v "^$(cd "$stage" && pwd)/"; then
    echo "lockstep: error: the tarball's programs do not find these in it" >&2
    exit 1
fi
for program in lockstep lockstep-train lockstep-launch lockstep-collectives; do
    ln -s "libexec/$program" "$stage/$program"
done
tar -C "$build/dist" -czf "$build/dist/$name.tar.gz" "$name"
echo "$build/dist/$name.tar.gz"
