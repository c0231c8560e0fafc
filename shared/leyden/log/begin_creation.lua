#!lua
-- Note the ids that rollouts are about to be created under, before they are bound to the run: those of a creator that
-- dies in between can then be found and released.
-- KEYS  run  claims
-- ARGV  id...
-- ->    {"noted"} | {"no run"}
local begun, ended = unpack(redis.call('HMGET', KEYS[1], 'begun', 'ended'))
if not begun or ended then return {'no run'} end
local seconds = redis.call('TIME')[1]
for _, id in ipairs(ARGV) do redis.call('ZADD', KEYS[2], seconds, id) end
return {'noted'}
