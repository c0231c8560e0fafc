-- Delete a finished or hidden rollout's keys once every reader of the run has acknowledged it. -> whether it did
local function free(rollout, events, completions, settings, succeeded, failed, id)
  local ordinal = redis.call('HGET', rollout, 'ordinal')
  if ordinal then
    for reader in string.gmatch(redis.call('HGET', settings, 'readers') or '', '%S+') do
      if redis.call('HEXISTS', rollout, 'acked:' .. reader) == 0 then return false end
    end
    redis.call('XDEL', completions, ordinal .. '-0')
  end
  redis.call('ZREM', succeeded, id)
  redis.call('ZREM', failed, id)
  redis.call('DEL', rollout, events)
  return true
end
