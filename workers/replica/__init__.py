"""Workers as pools of replicas on Ray Serve; the only room of `workers` that imports ray.

- `server`: the deployment class around one worker, and how a pool of replicas is deployed.
- `router`: which replica a call goes to, away from those that are silent.
- `routers`: the routers of a process, and what they avoid.
- `prefixes`: what travels of a transcript: the segments that the replica lacks.
- `client`: the `Worker` port over the pool's handle: routing, retries.
- `silence`: when a call to a replica counts as lost.

Six things are deliberate, each against a default of Serve:

- **One replica per request.** `ReplicaRouter` maps a request's id to a replica, so that its
  calls find their prefix in the cache there. It is a hint: when that replica is full or gone, the
  router takes the next on the ring, and the answer is the same.
- **gRPC by value** (`_by_reference=False`): about half the latency of Ray's object path, and a
  stream costs 0.1 ms an item instead of 0.4.
- **A call with one answer is unary**, which takes two thirds of a stream's time and CPU. Only a
  generation whose text somebody watches is streamed, with heartbeats.
- **A silent replica is given up** (a lost node closes no connection): a stream that lacks its
  heartbeats for `SILENCE_TIMEOUT_S`, at once; any other call that waits for so long, where some
  replicas no longer tell their status. Giving up, and hanging up, cancel the call.
- **A call means its whole transcript** and says so by a digest; what travels is what the replica
  has not seen. One that has not seen the rest is sent all of it, so affinity stays a hint.
- **A lost call is made again** within the retry timeout, on another replica or on the replacement
  of the only one. A generation that had begun resumes at the break: the new call carries what
  was received. Sampling is keyed by absolute position, so the draws are the same. Once a call has
  been retried in vain for that long, a circuit breaker refuses others at once and policies do
  without the pool, until one of the calls that it lets through now and then is answered.
"""
