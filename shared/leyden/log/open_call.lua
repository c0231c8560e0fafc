#!lua
-- Note that a call is about to be forwarded, if it may be. Opening a call that is open or on record changes nothing, and
-- succeeds even during a pause: it went before.
-- KEYS  rollout  run  replicas
-- ARGV  attempt  call  replica  nonce ("" for the admin, who is never fenced)
-- ->    {"opened", revision} | {"paused", retry_after, reason} | {"fenced", attempt} | {"finished", state} | {"missing"}
local attempt, call, replica = ARGV[1], ARGV[2], ARGV[3]
local state, nonce, fence, hidden, open, done =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'nonce', 'fence', 'hidden', 'call:' .. call, 'done:' .. call))
if not state or hidden then return {'missing'} end
if ARGV[4] ~= '' then
  if ARGV[4] ~= nonce then return {'fenced', ''} end
  if fence and fence ~= attempt then return {'fenced', fence} end
end
if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
local paused, retry_after, reason, revision =
  unpack(redis.call('HMGET', KEYS[2], 'paused', 'retry_after', 'reason', 'revision'))
if open or done then return {'opened', tonumber(revision or '0')} end
if paused then return {'paused', retry_after, reason} end

redis.call('HSET', KEYS[1], 'call:' .. call, replica .. ' ' .. attempt)
redis.call('HDEL', KEYS[1], 'held:' .. call)
redis.call('HINCRBY', KEYS[2], 'inflight:' .. replica, 1)
local time = redis.call('TIME')
redis.call('ZADD', KEYS[3], 'GT', time[1] .. '.' .. string.format('%06d', time[2]), replica)
return {'opened', tonumber(revision or '0')}
