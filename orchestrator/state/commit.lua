-- `Store.commit` (store.py) as one step. Redis runs a script alone and to its end, but does not undo the changes
-- of one that fails: so everything that can fail comes before the first change to documents and pointers.
local pointers, audit = KEYS[1], KEYS[2]
local identity, entry, kept, updates = unpack(ARGV, 1, 4)
local first, count = 5, tonumber(updates)
local revision = redis.call('HGET', pointers, '')
for update = 0, count - 1 do
  local name, expected = ARGV[first + 3 * update], ARGV[first + 3 * update + 1]
  local value = redis.call('HGET', pointers, name)
  if expected ~= (value and '=' .. value or '') then return {'conflict', name} end
end
for key = 3, #KEYS do
  if redis.call('EXISTS', KEYS[key]) == 1 then return {'exists', key - 3} end
end
redis.call('XADD', audit, 'MAXLEN', '~', kept, '*', 'e', entry)
for key = 3, #KEYS do
  redis.call('SET', KEYS[key], ARGV[first + 3 * count + key - 3])
end
for update = 0, count - 1 do
  local name, new = ARGV[first + 3 * update], ARGV[first + 3 * update + 2]
  if new == '' then
    redis.call('HDEL', pointers, name)
  else
    redis.call('HSET', pointers, name, string.sub(new, 2))
  end
end
local former, number = string.match(revision or '', '^(%x+):(%d+)$')
local now = (former or identity) .. ':' .. string.format('%d', (tonumber(number) or 0) + 1)
redis.call('HSET', pointers, '', now)
return {'done', now}
