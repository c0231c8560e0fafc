#!lua flags=allow-oom
-- Give up an id that was noted for a creation which never came. Its nonce is noted as freed, so that a creator who was
-- only held up claims the id anew.
-- KEYS  rollout  claims  freed
-- ARGV  id  nonce ("" if the id is not bound to the run)  until (Unix seconds)
-- ->    {"abandoned"} | {"kept"}
local noted = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not noted or tonumber(noted) > tonumber(ARGV[3]) then return {'kept'} end
redis.call('ZREM', KEYS[2], ARGV[1])
if ARGV[2] == '' or redis.call('EXISTS', KEYS[1]) == 1 then return {'kept'} end
redis.call('ZADD', KEYS[3], 0, ARGV[1] .. ' ' .. ARGV[2])
return {'abandoned'}
