#!lua
-- Change the run's model servers.
-- KEYS  models  run  control
-- ARGV  "add" | "replace"  then field, version, ...
-- ->    revision
if ARGV[1] == 'replace' then redis.call('DEL', KEYS[1]) end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'models')
return redis.call('HINCRBY', KEYS[2], 'revision', 1)
