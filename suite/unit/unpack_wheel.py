"""Checks a wheel and unpacks it as pip does: unpack_wheel.py WHEEL FOLDER. A folder that is there
must hold what the wheel does, and nothing else but Python's caches.
"""

import base64
import csv
import hashlib
import io
import os
import re
import sys
import zipfile

path, folder = sys.argv[1:]
name, version, *tag = os.path.basename(path)[: -len(".whl")].split("-", 2)
info = "%s-%s.dist-info/" % (name, version)
wheel = zipfile.ZipFile(path)
files = {entry.filename: wheel.read(entry) for entry in wheel.infolist()}
assert len(files) == len(wheel.namelist()), "a name twice"
assert os.path.getsize(path) < 8 << 20, "%d bytes" % os.path.getsize(path)

rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(files[info + "RECORD"].decode()))}
assert sorted(rows) == sorted(files), set(rows) ^ set(files)
assert rows.pop(info + "RECORD") == ["", ""]
for file, (digest, size) in rows.items():
    own = base64.urlsafe_b64encode(hashlib.sha256(files[file]).digest()).decode().rstrip("=")
    assert (digest, int(size)) == ("sha256=" + own, len(files[file])), file
assert ("\nTag: %s\n" % tag[0]).encode() in files[info + "WHEEL"]
assert ("\nName: %s\nVersion: %s\n" % (name, version)).encode() in files[info + "METADATA"]

code = {file: data for file, data in files.items() if data.startswith(b"\x7fELF")}
asked = re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", b"".join(code.values()))
glibc = max(map(int, asked))
assert tag[0].startswith("py3-none-manylinux_2_%d_" % glibc), "%s: glibc 2.%d" % (path, glibc)
tree = os.path.realpath(__file__).split("suite/unit")[0]
for at, _, found in os.walk(tree + "suite/observe/attach"):
    for file in found:
        own = os.path.join(at, file)
        packed = "lockstep/libexec/" + own[len(tree) :]
        if not file.startswith("test_") and "__pycache__" not in at:
            assert files.get(packed) == open(own, "rb").read(), "%s is not its file" % packed
for file, data in code.items():
    assert tree.encode() not in data, "%s names the folder that it was built in" % file
    if "/bundled/" in file:
        assert files[info + "licenses/%s.txt" % os.path.basename(file)], file
assert b"Apache License" in files[info + "licenses/LICENSE"]

if os.path.isdir(folder):
    there = {
        os.path.relpath(os.path.join(at, file), folder)
        for at, _, found in os.walk(folder)
        for file in found
        if "__pycache__" not in at
    }
    assert there == set(files), there ^ set(files)
for entry in wheel.infolist():
    out = wheel.extract(entry, folder)
    if entry.external_attr >> 16 & 0o111:
        os.chmod(out, 0o755)
