-- First answers, and budgets: strings that expire.

local operations = {}

function operations.once()
  local name, value, window = next_key(), next_text(), next_text()
  local first = write('SET', name, value, 'NX', 'GET', 'PX', window)
  if first then return {1, first} end
  return {OK}
end

-- The budget has `permits time`, with fractions of a permit.
function operations.take()
  local name, wanted, rate, burst = next_key(), next_number(), next_number(), next_number()
  local permits, at = burst, now
  local budget = call('GET', name)
  if budget then
    local rest, time_taken = match(budget, '^(%S+) (%d+)$')
    at = max(now, tonumber(time_taken))
    permits = min(burst, tonumber(rest) + (at - tonumber(time_taken)) * rate / 1000)
  end
  local granted = min(wanted, floor(permits))
  if granted <= 0 then return {OK, 0} end
  -- A full budget is the same as a missing one.
  local full_after = rate > 0 and (burst - permits + granted) / rate * 1000 or math.huge
  local expiry = format('%.0f', min(floor(full_after) + 1, 31622400000))
  write('SET', name, format('%.6f %.0f', permits - granted, at), 'PX', expiry)
  return {OK, granted}
end
