#!lua flags=allow-oom
-- Let a run take no more rollouts.
-- KEYS  run
-- ->    1 | 0 if the run has not begun
if redis.call('HEXISTS', KEYS[1], 'begun') == 0 then return 0 end
redis.call('HSET', KEYS[1], 'ended', 1)
return 1
