# Notifies a user from Ruby, for example in a model of Rails (after_commit): notify("anna", "Order 7 was shipped.").
require "json"
require "net/http"

REALTIME = URI(ENV.fetch("REALTIME_URL", "http://127.0.0.1:8080"))

def notify(user, text, key = nil)
  body = { topic: "notifications.#{user}", data: { text: text }, idempotency_key: key }.compact
  options = { use_ssl: REALTIME.scheme == "https", open_timeout: 5, read_timeout: 5 }
  response = Net::HTTP.start(REALTIME.host, REALTIME.port, **options) do |http|
    http.post("/api/v1/publish", body.to_json, "Authorization" => "Bearer #{ENV.fetch("SINEWS_API_KEY")}")
  end
  raise "notification: status #{response.code}: #{response.body}" unless response.is_a?(Net::HTTPSuccess)
  JSON.parse(response.body)
end

puts notify(*ARGV).to_json if $PROGRAM_NAME == __FILE__
