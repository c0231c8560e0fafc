#!lua
-- Note that a call is about to be forwarded, if it may be. Opening a call that is open or on record changes nothing, and
-- succeeds even during a pause: it went before. One that was open and is held has its place in the attempt's budget.
-- KEYS  rollout  run  replicas  events
-- ARGV  attempt  call  replica  nonce ("" for the admin, who is never fenced)
-- ->    {"opened", revision} | {"paused", retry_after, reason} | {"spent", "calls" | "tokens", used, limit}
--       | {"fenced", attempt} | {"finished", state} | {"missing"}
--#include now
--#include budget
local attempt, call, replica = ARGV[1], ARGV[2], ARGV[3]
local state, nonce, fence, hidden, open, done, held, under_way, calls, tokens, most_calls, most_tokens =
  unpack(redis.call('HMGET', KEYS[1], 'state', 'nonce', 'fence', 'hidden', 'call:' .. call, 'done:' .. call,
    'held:' .. call, 'open:' .. attempt, 'calls:' .. attempt, 'tokens:' .. attempt,
    'max_calls_per_attempt', 'max_tokens_per_attempt'))
if not state or hidden then return {'missing'} end
if ARGV[4] ~= '' then
  if ARGV[4] ~= nonce then return {'fenced', ''} end
  if fence and fence ~= attempt then return {'fenced', fence} end
end
if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
local paused, retry_after, reason, revision, run_calls, run_tokens = unpack(redis.call('HMGET', KEYS[2],
  'paused', 'retry_after', 'reason', 'revision', 'max_calls_per_attempt', 'max_tokens_per_attempt'))
if open or done then return {'opened', tonumber(revision or '0')} end
if not held then
  local begun = (calls or 0) + (under_way or 0)
  local spent = exceeded('calls', begun, most_calls or run_calls) or exceeded('tokens', tokens, most_tokens or run_tokens)
  if spent then
    note_refusal(KEYS[1], KEYS[4], attempt, spent)
    return {'spent', unpack(spent)}
  end
end
if paused then return {'paused', retry_after, reason} end

redis.call('HSET', KEYS[1], 'call:' .. call, replica .. ' ' .. attempt)
if held then
  redis.call('HDEL', KEYS[1], 'held:' .. call)
  redis.call('HINCRBY', KEYS[1], 'open:' .. attempt_of(held), -1)
end
redis.call('HINCRBY', KEYS[1], 'open:' .. attempt, 1)
redis.call('HINCRBY', KEYS[2], 'inflight:' .. replica, 1)
local time = redis.call('TIME')
redis.call('ZADD', KEYS[3], 'GT', time[1] .. '.' .. string.format('%06d', time[2]), replica)
return {'opened', tonumber(revision or '0')}
