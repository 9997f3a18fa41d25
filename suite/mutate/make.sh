#!/bin/sh
# make in the copy of the sources. Its libraries are shared objects, so that after a change one of them is linked, and not
# every program: what make takes for an archive is a linker script that names the shared object, and is older than everything.
#
#   suite/mutate/make.sh TREE ARGUMENT...
set -eu
tree=$1
shift
mkdir -p "$tree/bin"
cat >"$tree/bin/ar.new" <<'EOF'
#!/bin/sh
# ar cqs LIBRARY OBJECT...
set -eu
library=$2
shift 2
shared=$PWD/${library%.a}.so
if [ ! -e "$shared" ] || [ -n "$(find "$@" -newer "$shared")" ]; then
    cc -shared -Wl,-Bsymbolic -o "$shared" "$@"
fi
echo "INPUT($shared)" >"$library"
touch -d @1 "$library"
EOF
chmod +x "$tree/bin/ar.new"
mv "$tree/bin/ar.new" "$tree/bin/ar"
unset MAKEFLAGS MAKEOVERRIDES
PATH=$tree/bin:$PATH
LDFLAGS=-Wl,-Bsymbolic,--unresolved-symbols=ignore-in-shared-libs
export PATH LDFLAGS
exec make -s --no-print-directory -C "$tree" WARN=-w HAVE_CUDA= "$@"
