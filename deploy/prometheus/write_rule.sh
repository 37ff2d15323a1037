#!/bin/sh
# Write the PrometheusRule of the Kubernetes overlays, after a change of alerts.yaml.
set -eu
cd "$(dirname "$0")"
{
  printf '%s\n' '# Made from deploy/prometheus/alerts.yaml by deploy/prometheus/write_rule.sh: change that file.' \
    'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: baton' 'spec:'
  sed -n '/^groups:/,$p' alerts.yaml | sed 's/^./  &/'
} >../kubernetes/components/monitoring/alerts.yaml
