#!lua flags=allow-oom
-- Change the run's model servers; also when memory is full, since the trainer frees nothing before it has updated them.
-- KEYS  models  run  control
-- ARGV  "add" | "replace"  epoch ("" unless a trainer asks)  then field, version, ...
-- ->    {"set", revision} | {"lost", holder} | {"no run"}
--#include lease
if redis.call('HEXISTS', KEYS[2], 'begun') == 0 then return {'no run'} end
if not holds_lease(KEYS[2], ARGV[2]) then return {'lost', redis.call('HGET', KEYS[2], 'lease_holder') or ''} end
if ARGV[1] == 'replace' then redis.call('DEL', KEYS[1]) end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'models')
return {'set', redis.call('HINCRBY', KEYS[2], 'revision', 1)}
