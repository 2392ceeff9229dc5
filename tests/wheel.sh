#!/usr/bin/env bash
# Builds the wheel, installs it into a venv of its own and uses it from an empty folder.
# tests/wheel.sh [PYTHON]    whose packages the new venv may see; .venv's by default
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$repo/.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH
export FEDVLM_CACHE=$work/cache

"$python" -m build --no-isolation --outdir "$work/dist" "$repo" > "$work/build.log" 2>&1 ||
    { cat "$work/build.log"; exit 1; }
"$python" -m venv "$work/venv"
# First the wheel, then the other packages: so pip sees no editable fedvlm that it might spare.
"$work/venv/bin/python" -m pip install --quiet --no-deps --no-index "$work"/dist/*.whl
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site "$python" > "$(site "$work/venv/bin/python")/packages.pth"  # its .pth files are not read

mkdir "$work/empty"
cd "$work/empty"
fedvlm() {
    echo "\$ fedvlm $*"
    "$work/venv/bin/fedvlm" "$@"
}
"$work/venv/bin/python" -c "import fedvlm; assert '$work/venv' in fedvlm.__file__, fedvlm.__file__"
packaged=$(find "$work/venv" -path "*fedvlm*" -path "*evidence*")
[ -z "$packaged" ] || { echo "the wheel carries scripts/evidence: $packaged"; exit 1; }
fedvlm --version
fedvlm list
fedvlm list fedtv
fedvlm check fedavg
fedvlm --demo --rounds 1
fedvlm sweep --datasets shapes --trainers FedAvg FedPer --backbone tiny --shots 2 \
    --num-users 2 --rounds 1 --output-dir sweep
test "$(find sweep -name results.json | wc -l)" = 2
echo "\$ python ten_lines.py"  # an export read back by another library gives the same probabilities
if "$work/venv/bin/python" -c 'import onnx, onnxruntime, onnxscript' 2> /dev/null; then
    mkdir "$work/ten" && cd "$work/ten"
    "$work/venv/bin/python" "$repo/tests/ten_lines.py"
else
    echo "left out: pip install 'fedvlm[onnx]' first"
fi
echo "the wheel works: $(basename "$work"/dist/*.whl), $(du -h "$work"/dist/*.whl | cut -f1)"
