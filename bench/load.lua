-- wrk script: POST one body to many paths in turn, each with its own credential, and report in JSON.
-- Arguments after `--`: a file with a line `PATH<tab>CREDENTIAL` a target, and a file with the body.
local requests, turn = {}, 0

function init(args)
  local body = assert(io.open(args[2])):read('*a')
  for line in io.lines(args[1]) do
    local path, credential = line:match('^(%S+)\t(.*)$')
    requests[#requests + 1] = wrk.format('POST', path, {
      ['content-type'] = 'application/json', ['authorization'] = 'Bearer ' .. credential,
    }, body)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('RESULT {"calls": %d, "seconds": %.6f, "median_ms": %.4f, "p99_ms": %.4f, "max_ms": %.4f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
