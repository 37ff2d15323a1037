"""Workers as pools of replicas on Ray Serve; the only room of `workers` that imports ray.

- `server`: the deployment class around one worker, and how a pool of replicas is deployed.
- `client`: the `Worker` port over a pool: which replica gets a call, retries.
- `pool`: the replicas of a deployment that this process is connected to.
- `channel`: the connection that carries a caller's calls to one replica.
- `prefixes`: sends only the segments of a transcript that a replica lacks.
- `broadcast`: a question of Serve's handle to every replica.

Serve starts, checks, scales and replaces replicas, and says which there are. Calls do not go
through it:

- **One connection to each replica** carries all calls: a call takes a fraction of a millisecond. A
  call over Serve's handle takes 2 to 5 ms and as much CPU, and a step of a thought takes several.
- **One replica per request.** Rendezvous hashing maps a request's id to a replica, so that its
  calls find their prefix in the cache there. It is a hint: if that replica is full or gone, the
  next in the request's order is called, and the answer is the same.
- **A silent replica is given up** (a lost node closes no connection) if neither an answer nor a
  heartbeat comes for `SILENCE_TIMEOUT_S`. A caller that hangs up, or ends, ends its calls.
- **A call sends only what its replica has not seen** of the transcript, with a digest of the rest.
  A replica that has not seen the rest is sent all of it, so affinity stays a hint.
- **A lost call is retried** within the retry timeout, on another replica or on the replacement of
  the only one. A generation that had begun resumes at the break: the new call carries what was
  received, and draws the same, since sampling is keyed by absolute position. If the retries of a
  call fail for that long, a circuit breaker refuses others at once and policies do without the
  pool, until one of the calls that it lets through now and then is answered.
- **A replica that Serve ends leaves first**: callers send it no more, and its calls end.
"""
