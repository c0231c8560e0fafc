-- Put a run's rules (JSON) in place. What scripts look at stands beside them, under its own name.
local function put_rules(run, rules)
  redis.call('HSET', run, 'rules', rules)
  local decoded = cjson.decode(rules)
  for _, name in ipairs({'max_calls_per_attempt', 'max_tokens_per_attempt'}) do
    if type(decoded[name]) == 'number' then
      redis.call('HSET', run, name, string.format('%d', decoded[name]))
    else
      redis.call('HDEL', run, name)
    end
  end
end
