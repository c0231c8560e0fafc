#!lua flags=allow-oom
-- Change a run's rules for every call from now on.
-- KEYS  run  control
-- ARGV  rules (JSON)
-- ->    1 | 0 if the run has not begun
--#include rules
if redis.call('HEXISTS', KEYS[1], 'begun') == 0 then return 0 end
put_rules(KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[1], 'revision', 1)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'kind', 'settings')
return 1
