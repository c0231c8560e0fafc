#!lua flags=allow-oom
-- Append an event without which a rollout can not end as it should, also when memory is full.
-- KEYS  rollout  events
-- ARGV  attempt  event_type  event_id  payload  nonce ("" for the admin, who is never fenced)
-- ->    {"appended", at} | {"fenced", attempt} | {"finished", state} | {"missing"}
--#include now
--#include attempts
--#include append
return append(KEYS[1], KEYS[2], unpack(ARGV))
