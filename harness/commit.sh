#!/bin/sh
# Writes the commit of this tree, " dirty" behind it where tracked files differ, to the file FILE of a copy that leaves
# git behind (ls_machine_commit reads it). Outside git: nothing.
#
#   harness/commit.sh FILE
set -u
commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || exit 0
[ -z "$(git status --porcelain --untracked-files=no)" ] || commit="$commit dirty"
echo "$commit" >"$1"
