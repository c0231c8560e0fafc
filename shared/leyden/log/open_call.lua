#!lua
-- Note that a call is about to be forwarded, if it may be. Opening an open call again changes nothing.
-- KEYS  rollout  run  replicas
-- ARGV  id  attempt  call  replica  nonce ("" for the admin, who is never fenced)
-- ->    {"opened", revision} | {"paused", retry_after, reason} | {"fenced", attempt} | {"finished", state} | {"missing"}
local attempt, call, replica = ARGV[2], ARGV[3], ARGV[4]
local state, nonce, fence, hidden = unpack(redis.call('HMGET', KEYS[1], 'state', 'nonce', 'fence', 'hidden'))
if not state or hidden then return {'missing'} end
if ARGV[5] ~= '' then
  if ARGV[5] ~= nonce then return {'fenced', ''} end
  if fence and fence ~= attempt then return {'fenced', fence} end
end
if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
local paused, retry_after, reason, revision =
  unpack(redis.call('HMGET', KEYS[2], 'paused', 'retry_after', 'reason', 'revision'))
if paused then return {'paused', retry_after, reason} end

local time = redis.call('TIME')
if redis.call('HSETNX', KEYS[1], 'call:' .. call, replica .. ' ' .. attempt .. ' ' .. time[1]) == 1 then
  redis.call('HINCRBY', KEYS[2], 'inflight:' .. replica, 1)
end
redis.call('ZADD', KEYS[3], 'GT', time[1] .. '.' .. string.format('%06d', time[2]), replica)
return {'opened', tonumber(revision or '0')}
