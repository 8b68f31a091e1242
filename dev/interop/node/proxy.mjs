// An HTTP proxy by the `proxy-chain` package: node proxy.mjs [USER PASSWORD]
// Prints `listening on ADDRESS`.
import { Server } from 'proxy-chain';

const [user, password] = process.argv.slice(2);
const server = new Server({
  host: '127.0.0.1',
  port: 0,
  prepareRequestFunction: ({ username, password: given }) => ({
    requestAuthentication: user !== undefined && (username !== user || given !== password),
  }),
});
await server.listen();
console.log(`listening on 127.0.0.1:${server.port}`);
