import server from './index.js';

export const { serve } = server;
export default server;
