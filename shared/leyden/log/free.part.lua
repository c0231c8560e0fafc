-- Delete a rollout's keys once every reader of the run has acknowledged it; in a run without readers, once it is
-- hidden. Its id and nonce are noted with score 0: the id, which lies in another slot, is yet to be released.
-- -> whether it did
local function free(rollout, events, completions, run, succeeded, failed, freed, id)
  local ordinal, nonce, hidden = unpack(redis.call('HMGET', rollout, 'ordinal', 'nonce', 'hidden'))
  local readers = redis.call('HGET', run, 'readers') or ''
  if readers == '' and not hidden then return false end
  if ordinal then
    for reader in string.gmatch(readers, '%S+') do
      if redis.call('HEXISTS', rollout, 'acked:' .. reader) == 0 then return false end
    end
    redis.call('XDEL', completions, ordinal .. '-0')
  end
  redis.call('ZREM', succeeded, id)
  redis.call('ZREM', failed, id)
  redis.call('ZADD', freed, 0, id .. ' ' .. nonce)
  redis.call('UNLINK', rollout, events)
  return true
end
