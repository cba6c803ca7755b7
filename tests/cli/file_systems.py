#!/usr/bin/env python3
"""weir on the file systems that models lie on: every byte right, by direct reads where the file system takes them, else
through the page cache, by itself.

usage: file_systems.py WEIR FOLDER

A synthetic model of some 30 MB, whose length is no multiple of a block, is written into FOLDER (whose file system is the
first one) and copied to a tmpfs, an overlay, an ext4 on a loop device with 4 KiB sectors, and a squashfs. From each it is
run by userfaultfd with 40 % of its weights, by the reads that weir chooses, by plain ones, and with larger pages; the
logits must be those of a resident run. One line for each. Mounts live in a namespace of their own and are gone with it.
Exit status 77: not root, no mounts here, or no userfaultfd."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

SKIP = 77


def call(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def weir_run(weir, model, *extra, page=None):
    """What the run says of itself, or the line with which it failed."""
    environment = os.environ | ({'WEIR_PAGE_SIZE': page} if page else {})
    done = subprocess.run([weir, 'run', model, '-p', 'ab', '-n', '4', '-c', '64', '-t', '2', '--temp', '0', '--ignore-eos', '--json', '-q',
                           *extra], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        return None, f'exit status {done.returncode}: {done.stderr.strip()}'
    return json.loads(done.stdout), None


def on_tmpfs(model, folder, _):
    call('mount', '-t', 'tmpfs', '-o', 'size=256m', 'weir-test', folder)
    return shutil.copy(model, folder)


def on_overlay(model, folder, scratch):
    """The lower layer holds the model, as an image of a container does."""
    lower, upper, work = (os.path.join(scratch, name) for name in ('lower', 'upper', 'work'))
    for layer in (lower, upper, work):
        os.mkdir(layer)
    shutil.copy(model, lower)
    call('mount', '-t', 'overlay', '-o', f'lowerdir={lower},upperdir={upper},workdir={work}', 'weir-test', folder)
    return os.path.join(folder, os.path.basename(model))


def on_loop(image, folder, kind, *loop_options):
    device = subprocess.run(['losetup', '--find', '--show', *loop_options, image], check=True, capture_output=True, text=True).stdout.strip()
    try:
        if kind == 'ext4':
            call('mkfs.ext4', '-q', device)
        call('mount', '-t', kind, device, folder)
    finally:
        call('losetup', '--detach', device)  # as soon as nothing is mounted from it


def on_4k_sectors(model, folder, scratch):
    image = os.path.join(scratch, 'image')
    with open(image, 'wb') as file:
        file.truncate(256 << 20)
    on_loop(image, folder, 'ext4', '--sector-size', '4096')
    return shutil.copy(model, folder)


def on_squashfs(model, folder, scratch):
    image = os.path.join(scratch, 'squash')
    call('mksquashfs', model, image, '-quiet', '-no-progress')
    on_loop(image, folder, 'squashfs', '--read-only')
    return os.path.join(folder, os.path.basename(model))


# Name, how the model gets there, what reads must be: "direct", "buffered", or "" where it depends on what is below.
FILE_SYSTEMS = (
    ('plain', lambda model, folder, scratch: model, ''),
    ('tmpfs', on_tmpfs, 'buffered'),
    ('overlayfs', on_overlay, ''),
    ('ext4, 4 KiB sectors', on_4k_sectors, 'direct'),
    ('squashfs', on_squashfs, 'buffered'),
)


def check(weir, name, model, wanted, reference):
    """Complaints about the runs on one file system."""
    bad = []
    for what, extra, page in (('by itself', (), None), ('buffered', ('--io', 'buffered'), None), ('pread', ('--reader', 'pread'), None),
                              ('pages of 16K', (), '16K'), ('pages of 64K', (), '64K')):
        said, error = weir_run(weir, model, '--paging', 'uffd', '--weights-ram', '40%', *extra, page=page)
        if error:
            bad.append(f'{what}: {error}')
            continue
        io = said['paging']['rungs'].partition('io=')[2]
        if said['logits_hash'] != reference:
            bad.append(f'{what}: the logits differ')
        if wanted and not extra and not io.startswith(wanted):
            bad.append(f'{what}: reads are {io}, not {wanted}')
        if what == 'by itself':
            shown = io
    said, error = weir_run(weir, model, '--paging', 'uffd', '--weights-ram', '40%', '--io', 'direct')
    if said and said['logits_hash'] != reference:
        bad.append('--io direct: the logits differ')
    if error and 'use --io auto' not in error:
        bad.append(f'--io direct: {error}')
    print(f'{name:20} io={shown if not bad else "?"}  {"; ".join(bad) or "ok"}', flush=True)
    return bad


def inside(weir, folder):
    """In a mount namespace of our own."""
    with tempfile.TemporaryDirectory(dir=folder, prefix='weir-fs-') as scratch:
        model = os.path.join(scratch, 'model.gguf')
        call(weir, 'synth', '--shape', '1.1b', '--type', 'q4_0', '--layers', '1', '--vocab', '2000', '-o', model)
        if os.path.getsize(model) % 512 == 0:
            with open(model, 'ab') as file:
                file.write(b'odd')
        said, error = weir_run(weir, model, '--paging', 'resident')
        if error:
            print(f'resident: {error}')
            return 1
        _, error = weir_run(weir, model, '--paging', 'uffd', '--uffd-source', 'auto')
        if error and 'userfaultfd cannot be had' in error:
            print(f'skipped: {error}')
            return SKIP
        bad = []
        for name, put, wanted in FILE_SYSTEMS:
            with contextlib.ExitStack() as stack:
                mount = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix='weir-mount-'))
                below = stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix='weir-below-'))
                try:
                    place = put(model, mount, below)
                except FileNotFoundError as missing:
                    print(f'{name:20} left out: {missing.filename} is not installed')
                    continue
                except subprocess.CalledProcessError as error:
                    print(f'{name:20} left out: {" ".join(error.cmd)}: {error.stderr.strip()}')
                    continue
                stack.callback(subprocess.run, ['umount', '--lazy', mount], check=False, stderr=subprocess.DEVNULL)
                bad += check(weir, name, place, wanted, said['logits_hash'])
        return 1 if bad else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == '--inside':
        sys.exit(inside(*sys.argv[2:]))
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        print('skipped: file systems are mounted by root only')
        sys.exit(SKIP)
    alone = ['unshare', '--mount', '--propagation', 'private']
    if shutil.which('unshare') is None or subprocess.run([*alone, 'true'], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        print('skipped: no mount namespace may be made here')
        sys.exit(SKIP)
    weir, folder = map(os.path.abspath, sys.argv[1:])
    done = subprocess.run([*alone, sys.executable, os.path.abspath(__file__), '--inside', weir, folder], check=False)
    sys.exit(done.returncode)


if __name__ == '__main__':
    main()
