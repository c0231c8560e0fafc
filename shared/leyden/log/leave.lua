#!lua flags=allow-oom
-- Forget a gateway replica that goes; calls it still had open are no longer in flight.
-- KEYS  replicas  run  control
-- ARGV  replica  replica_ttl
-- ->    1 | 0 if it was not known
--#include now
--#include inflight
redis.call('HDEL', KEYS[2], 'inflight:' .. ARGV[1])
local known = redis.call('ZREM', KEYS[1], ARGV[1])
announce_if_drained(KEYS[2], KEYS[1], KEYS[3], now(), ARGV[2])
return known
