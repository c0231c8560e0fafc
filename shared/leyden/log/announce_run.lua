#!lua flags=allow-oom
-- Tell everybody that a run began or ended.
-- KEYS  runs
-- ARGV  "began" | "ended"  run
-- ->    entry
return redis.call('XADD', KEYS[1], '*', 'kind', ARGV[1], 'run', ARGV[2])
