#!lua flags=allow-oom
-- Change the run's model servers; also when memory is full, since the trainer frees nothing before it has updated them.
-- KEYS  models  run  control
-- ARGV  "add" | "replace"  then field, version, ...
-- ->    revision | 0 if the run has not begun
if redis.call('HEXISTS', KEYS[2], 'begun') == 0 then return 0 end
if ARGV[1] == 'replace' then redis.call('DEL', KEYS[1]) end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'kind', 'models')
return redis.call('HINCRBY', KEYS[2], 'revision', 1)
