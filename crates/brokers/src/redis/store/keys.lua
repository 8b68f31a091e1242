-- Keys. For a topic:
--   `keymeta`  string `epoch top bytes count forgotten due server jump…`, see `open`
--   `keys`     hash, key to `version expiry value`; an expiry of 0 is none. Its name is the channel, too.
--   `version`  sorted set of keys, and of keys removed a short time ago, by the version of the last change
--   `expiry`   sorted set of keys with an expiry
--   `removed`  sorted set of keys removed a short time ago, by time
-- For a partition: `due`, a sorted set of topics by the time at which the sweep has to look at them.

local NEVER = POSITION_MAX
-- Time in milliseconds for which removals are remembered.
local REMOVALS_KEPT = @REMOVALS_KEPT@
-- Time in milliseconds after which a topic without keys is forgotten, with its epoch.
local EMPTY_KEPT = 86400000
local JUMPS_KEPT = 8
local PAGE = 1000
-- Maximum changes in an answer: pages of all keys follow more of them.
local CHANGES_MAX = 4000

-- Reads the state of a topic. `forgotten` is a version below which removals or jumps are forgotten; `due` is the time of
-- the next expiry of a key or a removal; `jumps` are the sequences before
-- and behind each jump.
local function open(names)
  local topic = {names = names, changes = {}, change_of = {}, jumps = {}, was_missing = true, skipped = 0}
  local meta = call('GET', names.meta)
  if meta then
    local epoch, top, bytes, count, forgotten, due, id, jumps =
      match(meta, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%x+)(.*)$')
    topic.epoch, topic.top, topic.bytes = tonumber(epoch), tonumber(top), tonumber(bytes)
    topic.count, topic.forgotten, topic.due = tonumber(count), tonumber(forgotten), tonumber(due)
    if jumps ~= '' then
      for jump in string.gmatch(jumps, '%d+') do topic.jumps[#topic.jumps + 1] = tonumber(jump) end
    end
    topic.was_missing, topic.writer = false, id
  end
  if not meta or (topic.writer ~= server and not detects_failover) then
    topic.is_new, topic.epoch, topic.top, topic.jumps = true, new_epoch(), 0, {}
    topic.bytes, topic.count, topic.forgotten, topic.due = 0, 0, 0, NEVER
  end
  topic.must_jump = not topic.is_new and topic.writer ~= server
  topic.announced, topic.old_due, topic.old_count = topic.top, topic.due, topic.count
  return topic
end

local function next_version(topic)
  if topic.is_new then
    local names = topic.names
    write('DEL', names.keys, names.version, names.expiry, names.removed)
    -- A version names no other value of a topic that was lost.
    topic.is_new, topic.top = false, behind_jump(0)
  elseif topic.must_jump then
    local jumps = topic.jumps
    jumps[#jumps + 1], topic.top = topic.top, behind_jump(topic.top)
    jumps[#jumps + 1] = topic.top
    if #jumps > 2 * JUMPS_KEPT then
      table.remove(jumps, 1)
      topic.forgotten = max(topic.forgotten, table.remove(jumps, 1))
    end
    topic.must_jump, topic.skipped = false, 1
  else
    topic.top = topic.top + 1
  end
  return topic.top, format('%.0f', topic.top)
end

-- Returns the version, the expiry, and the start of the value, of a stored key.
local function stored_start(stored)
  local version, expiry, start = match(stored, '^(%d+) (%d+) ()')
  return tonumber(version), tonumber(expiry), start
end

-- Notes a change to announce. Only the last one of each key is announced.
local function note_change(topic, key, change)
  local earlier = topic.change_of[key]
  if earlier then topic.changes[earlier] = '' end
  topic.changes[#topic.changes + 1] = change
  topic.change_of[key] = #topic.changes
end

-- Announces the changes since the last announcement: `epoch top prev skipped`, of which the last is 1 behind a jump, and
-- for each change `version ttl key-bytes value-bytes` with the key and the value; a removal has no `value-bytes`, but a `-`.
local function announce(topic)
  if topic.top == topic.announced then return end
  local head = format('%.0f %.0f %.0f %d ', topic.epoch, topic.top, topic.announced, topic.skipped)
  publish(topic.names.keys, head .. table.concat(topic.changes))
  topic.announced, topic.changes, topic.change_of, topic.skipped = topic.top, {}, {}, 0
end

local function remove(topic, key, stored)
  local names = topic.names
  local version, text = next_version(topic)
  local _, expiry, start = stored_start(stored)
  write('HDEL', names.keys, key)
  if expiry > 0 then call('ZREM', names.expiry, key) end
  call('ZADD', names.version, text, key)
  call('ZADD', names.removed, format('%.0f', now), key)
  topic.bytes = topic.bytes - #key - (#stored - start + 1)
  topic.count = topic.count - 1
  topic.due = min(topic.due, now + REMOVALS_KEPT)
  note_change(topic, key, format('%s 0 %d - ', text, #key) .. key)
  return version
end

local function set(topic, key, value, ttl, stored)
  local names = topic.names
  local version, text = next_version(topic)
  -- The time is rounded down.
  local expiry = ttl > 0 and now + 1 + ttl or 0
  write('HSET', names.keys, key, format('%s %.0f ', text, expiry) .. value)
  call('ZADD', names.version, text, key)
  topic.bytes = topic.bytes + #value
  if stored then
    local _, old_expiry, start = stored_start(stored)
    topic.bytes = topic.bytes - (#stored - start + 1)
    if expiry == 0 and old_expiry > 0 then call('ZREM', names.expiry, key) end
  else
    call('ZREM', names.removed, key)
    topic.bytes, topic.count = topic.bytes + #key, topic.count + 1
  end
  if expiry > 0 then
    call('ZADD', names.expiry, format('%.0f', expiry), key)
    topic.due = min(topic.due, expiry)
  end
  note_change(topic, key, format('%s %.0f %d %d ', text, ttl, #key, #value) .. key .. value)
  return version
end

local function first_score(name)
  return tonumber(call('ZRANGE', name, 0, 0, 'WITHSCORES')[2] or NEVER)
end

-- Removes expired keys, at most a page of them, and forgets old removals. Returns the number of removed keys.
local function expire(topic)
  local names, limit = topic.names, format('%.0f', now)
  if now < topic.due then return 0 end
  local expired = call('ZRANGEBYSCORE', names.expiry, '-inf', limit, 'LIMIT', 0, PAGE)
  for _, key in ipairs(expired) do
    local stored = call('HGET', names.keys, key)
    if stored then remove(topic, key, stored) else write('ZREM', names.expiry, key) end
  end
  local old = format('%.0f', now - REMOVALS_KEPT)
  for _, key in ipairs(call('ZRANGEBYSCORE', names.removed, '-inf', old, 'LIMIT', 0, PAGE)) do
    topic.forgotten = max(topic.forgotten, tonumber(call('ZSCORE', names.version, key) or 0))
    write('ZREM', names.version, key)
    call('ZREM', names.removed, key)
    topic.has_forgotten = true
  end
  topic.due = min(first_score(names.expiry), first_score(names.removed) + REMOVALS_KEPT)
  announce(topic)
  return #expired
end

-- Announces and stores the state, if it has changed.
local function close(topic, name)
  local names = topic.names
  if topic.top == topic.announced and topic.due == topic.old_due and not topic.has_forgotten then
    return
  end
  announce(topic)
  local meta = format('%.0f %.0f %.0f %.0f %.0f %.0f %s', topic.epoch, topic.top, topic.bytes, topic.count,
    topic.forgotten, topic.due, topic.must_jump and topic.writer or server)
  for _, jump in ipairs(topic.jumps) do meta = meta .. format(' %.0f', jump) end
  if topic.count > 0 then
    write('SET', names.meta, meta)
    if topic.old_count == 0 then
      call('PERSIST', names.version)
      call('PERSIST', names.removed)
    end
  else
    write('SET', names.meta, meta, 'PX', EMPTY_KEPT)
    call('PEXPIRE', names.version, EMPTY_KEPT)
    call('PEXPIRE', names.removed, EMPTY_KEPT)
  end
  if topic.due ~= topic.old_due then
    if topic.due < NEVER then
      call('ZADD', names.due, format('%.0f', topic.due), name)
    else
      call('ZREM', names.due, name)
    end
  end
end

local operations = {}

local function next_names()
  return {
    meta = next_key(), keys = next_key(), version = next_key(), expiry = next_key(), removed = next_key(),
    due = next_key(),
  }
end

-- Returns the outcome that a condition demands, if it does not hold.
local function violation(topic, write_request, version)
  local condition = write_request.condition
  if condition == 'new' then
    if version then return {'exists', version} end
  elseif condition ~= '' then
    if not version then return {'missing'} end
    local is_other = condition ~= 'exists' and version ~= write_request.version
    if is_other or (condition == 'at' and write_request.epoch ~= topic.epoch) then return {'other', version} end
  end
end

local function apply(topic, request, limits)
  local key, value = request.key, request.value
  local stored = call('HGET', topic.names.keys, key)
  local version, expiry, start
  if stored then version, expiry, start = stored_start(stored) end
  -- An expired key has no value, even before its removal.
  if version and expiry > 0 and expiry <= now then version = nil end
  local outcome = violation(topic, request, version)
  if outcome then return outcome end
  if not value then
    if not version then return {'unchanged'} end
    return {'changed', remove(topic, key, stored)}
  end
  if not stored and topic.count + 1 > limits.keys then return {'keys'} end
  local size = stored and #value - (#stored - start + 1) or #key + #value
  if topic.bytes + size > limits.bytes then return {'bytes'} end
  return {'changed', set(topic, key, value, request.ttl, stored)}
end

local function next_request()
  local request = {key = next_text(), is_set = next_text() == 'set', value = next_text(), ttl = next_number()}
  request.condition, request.version, request.epoch = next_text(), next_number(), next_number()
  local once_window = next_number()
  if once_window > 0 then request.once, request.once_window = next_key(), once_window end
  if not request.is_set then request.value = nil end
  return request
end

local function apply_once(topic, request, limits)
  local first = request.once and call('GET', request.once)
  if first then return {'repeated', first} end
  local outcome = apply(topic, request, limits)
  if request.once then
    local changed = outcome[1] == 'changed' and format('%.0f', outcome[2]) or ''
    write('SET', request.once, changed, 'PX', format('%.0f', request.once_window))
  end
  return outcome
end

function operations.write()
  local names, name = next_names(), next_text()
  local limits, requests = {keys = next_number(), bytes = next_number()}, {}
  for at = 1, next_number() do requests[at] = next_request() end
  local topic = open(names)
  if behind_jump(topic.top) + #requests + topic.count > POSITION_MAX then
    return {REJECTED, 'the topic has no further positions'}
  end
  -- Space of expired keys is available. They are removed before, with an announcement of their own.
  local size = 0
  for _, request in ipairs(requests) do size = size + #request.key + #(request.value or '') end
  repeat
    local expired = expire(topic)
    local has_space = topic.count + #requests <= limits.keys and topic.bytes + size <= limits.bytes
  until expired < PAGE or has_space
  local before, outcomes = topic.top, {}
  for at, request in ipairs(requests) do outcomes[at] = apply_once(topic, request, limits) end
  close(topic, name)
  local position = topic.is_new and {0, 0, 0} or {topic.epoch, topic.top, before}
  return {OK, format('%.0f %.0f %.0f', unpack(position)), outcomes}
end

function operations.read()
  local meta_key, keys = next_key(), next_key()
  local cursor_server, cursor, limit = next_text(), next_text(), next_text()
  local meta = call('GET', meta_key)
  if not meta then return {1} end
  -- Another server has another order of keys.
  if cursor_server ~= '' and cursor_server ~= server then
    return {REJECTED, 'the pages are of another server; read the first page again'}
  end
  local page = call('HSCAN', keys, cursor, 'COUNT', limit)
  return {OK, match(meta, '^%d+ %d+'), now, server, page[1], page[2]}
end

-- Whether all changes behind a position are known.
local function is_known(topic, epoch, after)
  if after == 0 then return true end
  if epoch ~= topic.epoch or after > topic.top or after < topic.forgotten then return false end
  for at = 1, #topic.jumps, 2 do
    if after > topic.jumps[at] and after < topic.jumps[at + 1] then return false end
  end
  return true
end

function operations.changes()
  local names, epoch, after = next_names(), next_number(), next_number()
  local topic = open(names)
  if topic.was_missing then return {after == 0 and 2 or 1} end
  if topic.is_new or not is_known(topic, epoch, after) then return {1} end
  local limit = CHANGES_MAX + 1
  local changed = call('ZRANGEBYSCORE', names.version, format('(%.0f', after), '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
  if #changed / 2 == limit then return {1} end
  local keys = {}
  for at = 1, #changed, 2 do keys[#keys + 1] = changed[at] end
  local values = #keys > 0 and call('HMGET', names.keys, unpack(keys)) or {}
  local last_jump = topic.jumps[#topic.jumps - 1]
  local skipped = last_jump and after > 0 and last_jump >= after and 1 or 0
  return {OK, format('%.0f %.0f', topic.epoch, topic.top), now, skipped, changed, values}
end

function operations.clear()
  local names, name = next_names(), next_text()
  write('DEL', names.meta, names.keys, names.version, names.expiry, names.removed)
  call('ZREM', names.due, name)
  return {OK}
end

-- Removes expired keys of one partition's topics. Returns whether more is due.
local function sweep_partition(due, prefix)
  local names = call('ZRANGEBYSCORE', due, '-inf', format('%.0f', now), 'LIMIT', 0, 10)
  local more = #names == 10
  for _, name in ipairs(names) do
    local function named(part) return prefix .. part .. ':' .. name end
    local topic = open({
      meta = named('keymeta'), keys = named('keys'), version = named('version'), expiry = named('expiry'),
      removed = named('removed'), due = due,
    })
    if topic.is_new then
      write('ZREM', due, name)
    else
      more = expire(topic) == PAGE or more
      -- The partition's entry may be older than the topic's.
      topic.old_due = -1
      close(topic, name)
    end
  end
  return more
end

-- Removes expired keys, if this node holds the lease. Returns whether it does, and whether more is due.
function operations.sweep()
  local lease, partitions = next_key(), {}
  local holder, lease_time = next_text(), next_text()
  for at = 1, next_number() do partitions[at] = {due = next_key(), prefix = next_text()} end
  local current = call('GET', lease)
  if current and current ~= holder then return {OK, 0, 0} end
  write('SET', lease, holder, 'PX', lease_time)
  local more = false
  for _, partition in ipairs(partitions) do
    more = sweep_partition(partition.due, partition.prefix) or more
  end
  return {OK, 1, more and 1 or 0}
end
