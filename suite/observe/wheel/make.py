"""Packs `lockstep observe` as a wheel: the judge of BUILD, the libraries that not every system has,
what is loaded into jobs. The same files give the same bytes.

    python3 suite/observe/wheel/make.py BUILD FOLDER        prints FOLDER/lockstep-*.whl
"""

import base64
import glob
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
# What every manylinux system has (PEP 600); other libraries go into the wheel.
STOCK = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so[.0-9]*$")
METADATA = """Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: Judges whether a PyTorch DDP and AMP job computes what it claims to compute
License: Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.7
Description-Content-Type: text/markdown

`lockstep observe -- torchrun --nproc-per-node 2 train.py` runs a PyTorch job as it is, not one
line changed, and judges what it did: replicas, gradients, loss scale, optimizer, data, checkpoints.
`lockstep observe --rules` lists what it requires. PyTorch is the job's: none is installed with it.
"""


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def code(path):
    """A program or library without what differs from one build folder to the next."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        said("strip", "-s", "-R", ".comment", "-R", ".note.gnu.build-id", "-o", out, path)
        return read(out)


def bundled(program):
    """The paths of the libraries that it loads and not every system has."""
    lines = said("ldd", program)
    if "not found" in lines:
        sys.exit("lockstep: error: %s: libraries are missing:\n%s" % (program, lines))
    return sorted(path for path in re.findall(r"=> (/\S+)", lines) if not STOCK.search(path))


def license_of(library):
    """The text that the library's package has installed: Debian's names follow from the library's,
    such as libcjson1 from libcjson.so.1.
    """
    name, number = re.match(r"(lib[^/]*)\.so\.(\d+)", os.path.basename(library)).groups()
    root = os.path.realpath(library).split("/usr/lib", 1)[0]
    package = name.replace("_", "-") + ("-" if name[-1].isdigit() else "") + number
    texts = [root + "/usr/share/doc/%s/copyright" % package]
    texts += sorted(glob.glob(root + "/usr/share/licenses/%s/*" % name))
    texts += sorted(glob.glob(root + "/usr/share/licenses/%s/*" % name[3:]))
    for text in filter(os.path.isfile, texts):
        return read(text)
    sys.exit("lockstep: error: no license of %s, such as %s" % (library, texts[0]))


def tag(paths):
    """manylinux_2_<newest version of the C library that one of them asks for>."""
    asked = re.findall(r"\bGLIBC_(?:2\.(\d+)|(ABI_DT_RELR))", said("objdump", "-p", *paths))
    newest = max(36 if relr else int(minor) for minor, relr in asked)
    return "py3-none-manylinux_2_%d_%s" % (newest, platform.machine())


def collect(build):
    """{name in the wheel: bytes} and the wheel's name and tag."""
    program = os.path.join(build, "wheel", "lockstep")
    version = said(program, "--version").split()[1]
    loaded = glob.glob(os.path.join(build, "lib", "ls_nccl_[pi]*.so"))  # profiler, interpose
    libraries = bundled(program)
    files = {
        "lockstep/__init__.py": b'"""`lockstep observe`, as a package."""\n',
        "lockstep/__main__.py": read(HERE, "__main__.py"),
        "lockstep/libexec/lockstep": code(program),
        # where the judge would keep its cache: it goes into the runs instead
        "lockstep/libexec/oracle": b"",
    }
    for path in loaded:
        files["lockstep/libexec/lib/" + os.path.basename(path)] = code(path)
    for path in libraries:
        files["lockstep/libexec/bundled/" + os.path.basename(path)] = code(path)
    for pattern in ("suite/observe/attach/**/*.py", "plots/*.gp"):
        for path in glob.glob(os.path.join(ROOT, pattern), recursive=True):
            if not os.path.basename(path).startswith("test_"):
                files["lockstep/libexec/" + os.path.relpath(path, ROOT)] = read(path)
    name, kind = "lockstep-" + version, tag([program] + loaded + libraries)
    info = name + ".dist-info/"
    files[info + "METADATA"] = METADATA.format(version=version).encode()
    files[info + "WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: %s\n" % kind
    ).encode()
    files[info + "entry_points.txt"] = b"[console_scripts]\nlockstep = lockstep.__main__:main\n"
    files[info + "licenses/LICENSE"] = read(ROOT, "LICENSE")
    for path in libraries:
        files[info + "licenses/" + os.path.basename(path) + ".txt"] = license_of(path)
    return files, info, "%s-%s.whl" % (name, kind)


def write(path, files, info):
    rows = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        rows.append("%s,sha256=%s,%d\n" % (name, digest.decode(), len(files[name])))
    record = info + "RECORD"
    files = dict(files, **{record: "".join(rows + [record + ",,\n"]).encode()})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files, key=lambda name: (name.startswith(info), name)):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            runs = name == "lockstep/libexec/lockstep" or name.endswith(".so")
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            wheel.writestr(entry, files[name])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, folder = sys.argv[1:]
    files, info, name = collect(build)
    os.makedirs(folder, exist_ok=True)
    write(os.path.join(folder, name), files, info)
    print(os.path.join(folder, name))


if __name__ == "__main__":
    main()
