-- Logs. For a topic: `log`, a list of entries `sequence prev time payload`, oldest first, and `logmeta`, the string
-- `epoch top bytes refresh age messages server`. The name of `log` is the channel, too. Both expire: their time to live is
-- set again at `refresh`, and not by each append. Readers see the last `messages` entries only: the oldest ones are removed
-- several at a time, which moves the others once.

-- Returns the sequence, the predecessor, the time and the start of the payload.
local function entry_start(entry)
  local sequence, prev, at, start = match(entry, '^(%d+) (%d+) (%d+) ()')
  return tonumber(sequence), tonumber(prev), tonumber(at), start
end

-- Returns texts, since most of them are stored again unchanged.
local function read_meta(meta_key)
  local meta = call('GET', meta_key)
  if not meta then return nil end
  return match(meta, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%x+)$')
end

-- Maximum entries that wait for their removal.
local SURPLUS_MAX = 64

-- Retentions of this batch by their text.
local retentions = {}
local function retention_of(text)
  local retention = retentions[text]
  if not retention then
    local messages, bytes, age, unused = match(text, '^(%d+) (%d+) (%d+) (%d+)$')
    retention = {messages = tonumber(messages), bytes = tonumber(bytes), age = tonumber(age), unused = tonumber(unused)}
    retention.messages_text, retention.meta_tail = messages, ' ' .. age .. ' ' .. messages .. ' ' .. server
    retentions[text] = retention
  end
  return retention
end

-- Sets the time to live of a log. Returns that of its `logmeta`, and the time at which to set both again.
local function refresh(log, retention)
  -- A topic expires up to an eighth later than it has to.
  local unused, age = retention.unused, retention.age
  local refresh_time = floor(unused / 8)
  call('PEXPIRE', log, format('%.0f', (age > 0 and min(age, unused) or unused) + refresh_time))
  return format('%.0f', unused + refresh_time), format('%.0f', now + refresh_time)
end

local function payload_bytes(entry)
  return #entry - match(entry, '^%d+ %d+ %d+ ()') + 1
end

-- Removes the oldest entries beyond the limits. Returns the remaining bytes.
local function trim(log, length, bytes, messages_max, retention)
  if length > messages_max then
    -- A bound for one call: the next append continues.
    local surplus = min(length - messages_max, 1000)
    for _, entry in ipairs(call('LPOP', log, surplus)) do bytes = bytes - payload_bytes(entry) end
    length = length - surplus
  end
  local last = max(length - 1000, 1)
  while length > last do
    if bytes <= retention.bytes then
      if retention.age == 0 then break end
      local _, _, at = entry_start(call('LINDEX', log, 0))
      if at + retention.age >= now then break end
    end
    bytes = bytes - payload_bytes(call('LPOP', log))
    length = length - 1
  end
  return bytes
end

local operations = {}

function operations.append()
  local meta_key, log = next_key(), next_key()
  local payload, retention, extras = next_texts(3)
  retention = retention_of(retention)
  local once, once_window, top_epoch, top_sequence
  if extras ~= '' then
    once_window, top_epoch, top_sequence = match(extras, '^(%d*) (%d*) (%d*)$')
    once = once_window ~= '' and next_key()
    local first = once and call('GET', once)
    if first then return {2, first} end
  end
  local epoch, prev, bytes, refresh_at, _, messages, writer = read_meta(meta_key)
  if top_sequence and top_sequence ~= '' and (top_sequence ~= (prev or '0') or (prev and top_epoch ~= epoch)) then
    return {1}
  end
  local sequence
  if not epoch or (writer ~= server and not detects_failover) then
    write('DEL', log)
    epoch, sequence, prev = format('%.0f', new_epoch()), '1', '0'
  else
    local number = tonumber(prev)
    number = writer == server and number + 1 or behind_jump(number)
    if number > POSITION_MAX then return {REJECTED, 'the topic has no further positions'} end
    sequence = format('%.0f', number)
  end
  local entry = sequence .. ' ' .. prev .. ' ' .. now_text .. ' ' .. payload
  local length = call('RPUSH', log, entry)
  has_written = true
  bytes = (length == 1 and 0 or bytes) + #payload
  local has_changed = messages ~= retention.messages_text
  if has_changed or length > retention.messages + min(floor(retention.messages / 8), SURPLUS_MAX) or bytes > retention.bytes or retention.age > 0 then
    -- With another limit, entries that were beyond the former one stay so.
    local limit = has_changed and length > 1 and min(retention.messages, messages + 1) or retention.messages
    bytes = trim(log, length, bytes, limit, retention)
  end
  local head = epoch .. ' ' .. sequence .. ' ' .. format('%.0f', bytes) .. ' '
  if length == 1 or now >= tonumber(refresh_at) then
    local meta_time
    meta_time, refresh_at = refresh(log, retention)
    call('SET', meta_key, head .. refresh_at .. retention.meta_tail, 'PX', meta_time)
  else
    call('SET', meta_key, head .. refresh_at .. retention.meta_tail, 'KEEPTTL')
  end
  publish(log, epoch .. ' ' .. entry)
  -- For patterns, which sharded channels do not have.
  if IS_CLUSTER then publish(match(log, '^.-}:') .. 'appends', #log .. ' ' .. log .. epoch .. ' ' .. entry) end
  local answer = epoch .. ' ' .. sequence .. ' ' .. prev
  if once then call('SET', once, answer, 'PX', once_window) end
  return answer
end

-- Defined when they are needed: each definition costs time in each call.
local function more_operations()
  -- Returns the index of the first entry behind a sequence.
  local function first_behind(log, oldest, length, top, after)
    local low, high = oldest, length
    -- Exact if no sequence was skipped.
    local guess = length - (top - after)
    while low < high do
      local middle = floor((low + high) / 2)
      if guess >= low and guess < high then middle = guess end
      guess = -1
      local sequence, prev = entry_start(call('LINDEX', log, middle))
      if sequence <= after then
        low = middle + 1
      elseif prev <= after then
        return middle
      else
        high = middle
      end
    end
    return low
  end

  local PAGE = 64

  local function read_behind(log, oldest, length, top, after, messages_max, bytes_max, is_recent)
    local index = after < top and first_behind(log, oldest, length, top, after) or length
    local entries = {}
    while index < length and #entries < messages_max and bytes_max > 0 do
      for _, entry in ipairs(call('LRANGE', log, index, index + min(PAGE, messages_max) - 1)) do
        if #entries == messages_max or bytes_max <= 0 then break end
        index = index + 1
        local _, _, at, start = entry_start(entry)
        if is_recent(at) then
          entries[#entries + 1] = entry
          bytes_max = bytes_max - (#entry - start + 1)
        end
      end
    end
    return entries, index < length and 1 or 0
  end

  local function read_last(log, oldest, length, count, bytes_max, is_recent)
    local newest_first, index = {}, length - 1
    while index >= oldest and #newest_first < count and bytes_max > 0 do
      local page = call('LRANGE', log, max(index - min(PAGE, count) + 1, oldest), index)
      for at = #page, 1, -1 do
        local _, _, time_appended, start = entry_start(page[at])
        if #newest_first == count or bytes_max <= 0 or not is_recent(time_appended) then
          index = oldest
          break
        end
        newest_first[#newest_first + 1] = page[at]
        bytes_max = bytes_max - (#page[at] - start + 1)
      end
      index = index - #page
    end
    local entries = {}
    for at = #newest_first, 1, -1 do entries[#entries + 1] = newest_first[at] end
    return entries, 0
  end

  local function read()
    local meta_key, log = next_key(), next_key()
    local kind, start, messages_max, bytes_max = next_text(), next_number(), next_number(), next_number()
    local epoch, top_text, _, _, age, messages = read_meta(meta_key)
    if not epoch then return {1} end
    local top = tonumber(top_text)
    age = tonumber(age)
    local function is_recent(at) return age == 0 or at + age >= now end
    local length = call('LLEN', log)
    local oldest = max(length - messages, 0)
    local entries, more
    if kind == 'after' then
      entries, more = read_behind(log, oldest, length, top, start, messages_max, bytes_max, is_recent)
    else
      entries, more = read_last(log, oldest, length, min(start, messages_max), bytes_max, is_recent)
    end
    return {OK, epoch .. ' ' .. top_text, more, entries}
  end

  -- Each key is that of a `logmeta` or `keymeta`, which begin equally.
  local function tops()
    local tops = {}
    for at = 1, next_number() do tops[at] = call('GET', next_key()) end
    return {OK, tops}
  end

  local function clear()
    local meta_key, log = next_key(), next_key()
    write('DEL', meta_key, log)
    return {OK}
  end

  return {append = operations.append, read = read, tops = tops, clear = clear}
end
