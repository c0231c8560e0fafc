#!lua flags=allow-oom
-- Put a rollout's hash in place as it was folded from its stream, unless the stream has grown since. Its open and held
-- calls, which the stream does not know, and their number stay.
-- KEYS  rollout  events  rollouts:queuing  :running  :succeeded  :failed
-- ARGV  id  last_entry  then field, value, ...
-- ->    {"rebuilt"} | {"grown"}
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if not newest[1] or newest[1][1] ~= ARGV[2] then return {'grown'} end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  local kind = string.match(field, '^(%l+):')
  if kind ~= 'call' and kind ~= 'held' and kind ~= 'open' then redis.call('HDEL', KEYS[1], field) end
end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
local set = {queuing = KEYS[3], running = KEYS[4], succeeded = KEYS[5], failed = KEYS[6]}
local state, created, hidden = unpack(redis.call('HMGET', KEYS[1], 'state', 'created_at', 'hidden'))
for _, key in pairs(set) do redis.call('ZREM', key, ARGV[1]) end
if not hidden then redis.call('ZADD', set[state], created, ARGV[1]) end
return {'rebuilt'}
