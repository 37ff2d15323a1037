#!/bin/sh
# Make the Helm chart in build/chart (or in a folder): chart/ and the overlays as kustomize renders them.
set -eu
here=$(dirname "$0")
to=${1:-build/chart}
rm -rf "$to"
mkdir -p "$to/overlays"
cp -R "$here"/chart/. "$to"
for overlay in "$here"/overlays/*; do
  kubectl kustomize "$overlay" >"$to/overlays/$(basename "$overlay").yaml"
done
echo "$to"
