#!/usr/bin/env bash
# Run the GPU checks with what this machine has: its own torch, and of the rest what pip can get within two minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
ENVIRONMENT=.venv-gpu
test -x "$ENVIRONMENT/bin/python" || "$PYTHON" -m venv --system-site-packages "$ENVIRONMENT"
if ! timeout 120 "$ENVIRONMENT/bin/pip" install --quiet --retries 0 --timeout 10 --editable '.[trainer,dev]'; then
    echo "the rest of the trainer can't be installed here: what needs it is skipped" >&2
fi
export PYTHONPATH="$PWD:$PWD/shared:$PWD/services:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 480 "$ENVIRONMENT/bin/python" -m tests.gpu.smoke
