-- Append an event that somebody reports, once per event id.
-- -> {"appended", at} | {"fenced", attempt} | {"finished", state} | {"missing"}
local function append(rollout, events, attempt, event_type, event_id, payload, agents_nonce)
  local state, nonce, fence, hidden, attempts, known =
    unpack(redis.call('HMGET', rollout, 'state', 'nonce', 'fence', 'hidden', 'attempts', 'event:' .. event_id))
  if not state or hidden then return {'missing'} end
  if agents_nonce ~= '' and agents_nonce ~= nonce then return {'fenced', ''} end
  if known then return {'appended', known} end
  if agents_nonce ~= '' then
    if fence and fence ~= attempt then return {'fenced', fence} end
    if state ~= 'queuing' and state ~= 'running' then return {'finished', state} end
  end

  local at = now()
  redis.call('XADD', events, '*', 'kind', 'event', 'type', event_type, 'attempt', attempt, 'at', at, 'id', event_id,
    'data', payload)
  redis.call('HSET', rollout, 'event:' .. event_id, at)
  note_attempt(rollout, attempts, attempt)
  return {'appended', at}
end
