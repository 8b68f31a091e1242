-- End of each script.

-- An error with its code, such as `OOM`.
local function failed(error)
  local text = type(error) == 'table' and error.err or tostring(error)
  return {has_written and UNKNOWN or REJECTED, text}
end

local answers = {replicas, '', now}
while argument_index < #ARGV do
  has_written = false
  local name = next_text()
  if not operations[name] then operations = more_operations() end
  local is_executed, answer = pcall(operations[name])
  answers[#answers + 1] = is_executed and answer or failed(answer)
end
answers[2] = publish_error
return answers
