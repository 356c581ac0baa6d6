"""Checks what a wheel for other machines contains: python check_wheel.py WHEEL PLATFORM CHECKOUT. Prints its size."""

import fnmatch
import os
import sys
import zipfile

MAX_BYTES = 20_000_000
NOTICES = ["Apache License 2.0", "Boost.Context", "CLI11", "fmt", "JSON for Modern C++", "OpenSSL"]
WANTED = ["vqgen/_core.abi3.so", "vqgen/lib*/libvqgen.so", "vqgen/bin/vqgen", "vqgen/libexec/vqgen/vqgen-nvrtc",
          "vqgen-*.dist-info/licenses/LICENSE", "vqgen-*.dist-info/licenses/THIRD_PARTY_NOTICES.txt"]


def faults(wheel, platform, checkout):
    name = os.path.basename(wheel)
    if not fnmatch.fnmatch(name, f"vqgen-*-cp311-abi3-{platform}.whl"):
        yield f"{name} is not named cp311-abi3-{platform}"
    size = os.path.getsize(wheel)
    if size > MAX_BYTES:
        yield f"{size:,} bytes, more than {MAX_BYTES:,}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for wanted in WANTED:
            if not fnmatch.filter(names, wanted):
                yield f"{wanted} is missing"
        for each in names:
            content = archive.read(each)
            if ".libs/" in each:
                yield f"{each}: a library of this machine was copied in; link it statically"
            if checkout.encode() in content:
                yield f"{each} names the checkout"
            if each.endswith("/THIRD_PARTY_NOTICES.txt"):
                yield from (f"{each}: nothing about {title}" for title in NOTICES if title not in content.decode())
    print(f"{name}: {size:,} bytes, {len(names)} files")


found = list(faults(*sys.argv[1:]))
for fault in found:
    print(f"wheel: {fault}", file=sys.stderr)
sys.exit(1 if found else 0)
