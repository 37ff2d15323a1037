-- `Store.commit` (store.py) as one step. Redis runs a script alone and to its end, but does not undo the changes
-- of one that fails: so everything that can fail comes before the first change to documents and pointers.
-- Arguments after the first four: the documents, then names and values of pointers.
local pointers, audit = KEYS[1], KEYS[2]
local known, identity, entry, kept = unpack(ARGV, 1, 4)
local revision = redis.call('HGET', pointers, '') or ''
if revision ~= known then return {'conflict', revision} end
for key = 3, #KEYS do
  if redis.call('EXISTS', KEYS[key]) == 1 then return {'exists', key - 3} end
end
redis.call('XADD', audit, 'MAXLEN', '~', kept, '*', 'e', entry)
for key = 3, #KEYS do
  redis.call('SET', KEYS[key], ARGV[key + 2])
end
for at = #KEYS + 3, #ARGV, 2 do
  if ARGV[at + 1] == '' then
    redis.call('HDEL', pointers, ARGV[at])
  else
    redis.call('HSET', pointers, ARGV[at], ARGV[at + 1])
  end
end
local former, number = string.match(revision, '^(%x+):(%d+)$')
local now = (former or identity) .. ':' .. string.format('%d', (tonumber(number) or 0) + 1)
redis.call('HSET', pointers, '', now)
return {'done', now}
