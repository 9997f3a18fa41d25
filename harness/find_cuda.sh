#!/bin/sh
# Finds CUDA's compiler, headers and libraries. Prints a line NAME=VALUE for each part that exists: NVCC,
# CUDA_VERSION, and for CUDART, CUDNN, CUBLASLT, NCCL and NVTX the folder of the header (X_INC), the
# library file (X_LIB) and the version in the header (X_VERSION); for CCCL, which cuda_fp16.h includes,
# the folder of nv/target (CCCL_INC). Searches the toolkit (CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda), the
# system's folders and the Python wheels of NVIDIA (nvidia/<part>/{include,lib} in site-packages of
# PYTHON, else python3).
set -u

roots=
add() {
    if [ -d "$1" ]; then roots="$roots $1"; fi
}
for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
    [ -z "$home" ] || add "$home"
done
found=$(command -v nvcc 2>/dev/null)
if [ -n "$found" ]; then
    add "$(dirname "$(dirname "$(readlink -f "$found")")")"
fi
add /usr/local/cuda
add /usr
add /usr/local
packages=$(${PYTHON:-python3} -c 'import site
print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null)
for folder in $packages; do
    for part in "$folder"/nvidia/*/; do
        [ ! -d "$part" ] || add "${part%/}"
    done
done

nvcc=
for root in $roots; do
    if [ -x "$root/bin/nvcc" ]; then
        nvcc=$root/bin/nvcc
        break
    fi
done
[ -z "$nvcc" ] || echo "NVCC=$nvcc"

# number NAME FILE...: the value of #define NAME in the first file that has it
number() {
    name=$1
    shift
    sed -n "s/^ *#define  *$name  *\([0-9][0-9]*\).*/\1/p" "$@" 2>/dev/null | head -n 1
}
version() { # name, folder of headers
    case $1 in
    CUDART) # 13000: 13.0
        all=$(number CUDART_VERSION "$2/cuda_runtime_api.h")
        echo "$((all / 1000)).$((all % 1000 / 10))"
        ;;
    CUDNN)
        set -- "$2/cudnn_version.h" "$2/cudnn_version_v9.h"
        echo "$(number CUDNN_MAJOR "$@").$(number CUDNN_MINOR "$@").$(number CUDNN_PATCHLEVEL "$@")"
        ;;
    CUBLASLT)
        set -- "$2/cublas_api.h"
        echo "$(number CUBLAS_VER_MAJOR "$@").$(number CUBLAS_VER_MINOR "$@").$(number CUBLAS_VER_PATCH "$@")"
        ;;
    NCCL)
        set -- "$2/nccl.h"
        echo "$(number NCCL_MAJOR "$@").$(number NCCL_MINOR "$@").$(number NCCL_PATCH "$@")"
        ;;
    *) echo yes ;;
    esac
}

# part NAME HEADER LIBRARY: the first root that has both, else the first with the header
part() {
    inc= lib=
    for root in $roots; do
        [ -f "$root/include/$2" ] || continue
        for file in "$root"/lib/$3.so "$root"/lib64/$3.so "$root"/lib/*-linux-gnu/$3.so \
            "$root"/lib/$3.so.* "$root"/lib64/$3.so.* "$root"/lib/*-linux-gnu/$3.so.*; do
            if [ -f "$file" ]; then
                inc=$root/include lib=$file
                break 2
            fi
        done
        : "${inc:=$root/include}"
    done
    [ -n "$inc" ] || return 0
    echo "$1_INC=$inc"
    echo "$1_VERSION=$(version "$1" "$inc")"
    [ -z "$lib" ] || echo "$1_LIB=$lib"
}
part CUDART cuda_runtime_api.h libcudart
part CUDNN cudnn.h libcudnn
part CUBLASLT cublasLt.h libcublasLt
part NCCL nccl.h libnccl
part NVTX nvtx3/nvToolsExt.h libnvtx3interop
for root in $roots; do
    for folder in "$root/include" "$root/include/cccl"; do
        if [ -f "$folder/nv/target" ]; then
            echo "CCCL_INC=$folder"
            break 2
        fi
    done
done
