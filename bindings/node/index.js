'use strict';

module.exports = require('./lib/serve.js');
