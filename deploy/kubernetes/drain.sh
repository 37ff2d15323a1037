#!/bin/sh
# preStop of a Ray pod: Ray moves what runs here to other nodes, and the pod goes when nothing is
# left. Answers that run may end; drain.sh SECONDS is the longest that takes.
set -eu
ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod ends" \
  --deadline-remaining-seconds "$1" || exit 0 # the cluster is gone: nothing to wait for
until=$(($(date +%s) + $1))
while [ "$(date +%s)" -lt "$until" ] && grep -qs "[S]erveReplica" /proc/[0-9]*/cmdline; do
  sleep 1
done
