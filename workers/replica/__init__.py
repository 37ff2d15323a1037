"""Workers as pools of replicas on Ray Serve; the only room of `workers` that imports ray.

- `server`: the deployment class around one worker, and how a pool of replicas is deployed.
- `router`: chooses a replica for each call, and avoids silent ones.
- `routers`: the routers of a process, and what they avoid.
- `prefixes`: sends only the segments of a transcript that a replica lacks.
- `client`: the `Worker` port over the pool's handle: routing, retries.
- `broadcast`: a call to every replica.
- `silence`: when a call to a replica counts as lost.

Six choices differ from Serve's defaults:

- **One replica per request.** `ReplicaRouter` maps a request's id to a replica, so that its
  calls find their prefix in the cache there. It is a hint: if that replica is full or gone, the
  router takes the next on the ring, and the answer is the same.
- **gRPC by value** (`_by_reference=False`): about half the latency of Ray's object path, and a
  stream costs 0.1 ms an item instead of 0.4.
- **A call with one answer is unary**, which takes two thirds of a stream's time and CPU. Only a
  generation whose text is streamed to a client is a stream, with heartbeats.
- **A silent replica is given up** (a lost node closes no connection): a stream without heartbeats
  for `SILENCE_TIMEOUT_S` at once; any other call after that time, if some replicas no longer report
  their status. Giving a call up cancels it, and so does a caller that hangs up.
- **A call sends only what its replica has not seen** of the transcript, with a digest of the rest.
  A replica that has not seen the rest is sent all of it, so affinity stays a hint.
- **A lost call is retried** within the retry timeout, on another replica or on the replacement of
  the only one. A generation that had begun resumes at the break: the new call carries what was
  received, and draws the same, since sampling is keyed by absolute position. If the retries of a
  call fail for that long, a circuit breaker refuses others at once and policies do without the
  pool, until one of the calls that it lets through now and then is answered.
"""
