#!/bin/sh
# preStop of a worker pod: Ray moves what runs here to other nodes, and the pod goes when nothing is
# left. Answers that run may end; drain.sh SECONDS is the longest that takes. Answers of other pods
# may go by the proxy here: Serve ends it (with HAProxy on, HAProxy and its manager) once they are
# through, after 30 s at the earliest. Not for the head, whose proxy always stays.
set -eu
ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod ends" \
  --deadline-remaining-seconds "$1" || exit 0 # the cluster is gone: nothing to wait for
until=$(($(date +%s) + $1))
while [ "$(date +%s)" -lt "$until" ] \
  && grep -qsE "[S]erveReplica|[P]roxyActor|[H]AProxyManager" /proc/[0-9]*/cmdline; do
  sleep 1
done
